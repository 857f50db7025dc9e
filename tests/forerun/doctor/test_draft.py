"""The draft's checks: a file that is none, one that is damaged, one that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_client.config.sections import DraftSection
from edge_client.model_store import hash_of
from forerun.doctor.child import Asked
from forerun.doctor.draft import Told, ask_child, check_child, find_file
from forerun.doctor.finding import Level


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.edge_client.llama.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("draft") / "tiny.gguf")


def levels(path: Path | str, sha256: str = "") -> dict[str, Level]:
    _, findings = find_file(DraftSection(model=str(path), sha256=sha256), Path("none"))
    return {each.name: each.level for each in findings}


def test_a_file_is_there_is_gguf_and_hashes_as_it_should(tmp_path: Path) -> None:
    assert levels("") == {"draft file": Level.FAIL}
    assert levels(tmp_path / "none") == {"draft file": Level.FAIL}
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"no model")
    assert levels(path) == {"draft file": Level.FAIL}
    path.write_bytes(b"GGUF and more")
    assert levels(path) == {"draft file": Level.OK, "draft hash": Level.SKIP}
    assert levels(path, hash_of(path, lambda done, total: None).upper())["draft hash"] is Level.OK
    assert levels(path, "0" * 64)["draft hash"] is Level.FAIL
    assert find_file(DraftSection(model=str(path), sha256="0" * 64), tmp_path)[0] == "", "it is not loaded"


@pytest.mark.llama
def test_a_draft_that_works_is_timed(tiny: Path) -> None:
    asked = Asked(path=str(tiny), context=512)
    told = ask_child(asked)
    assert told.end == ""
    findings = {each.name: each for each in check_child(asked, told)}
    assert findings["draft loads"].level is Level.OK
    assert (told.number("steps", "step_ms") or 0.0) > 0
    assert findings["tokenizer"].level is Level.SKIP


@pytest.mark.llama
def test_a_damaged_draft_ends_its_process_and_not_ours(tiny: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    asked = Asked(path=str(cut), context=512)
    findings = {each.name: each for each in check_child(asked, ask_child(asked))}
    assert findings["draft loads"].level is Level.FAIL
    assert findings["draft loads"].words


def test_a_child_that_takes_too_long_is_ended() -> None:
    told = ask_child(Asked(), longest=0.001)
    assert told.end == "it took longer than 0.001 s"
    (finding,) = check_child(Asked(), told)
    assert (finding.name, finding.level) == ("processor", Level.FAIL)


SYSTEM = {"system": {"info": "AVX2 = 1"}, "loaded": {"description": "d", "seconds": 0.1}}
TEXT = {"ms_per_token": 20.0, "step_ms": 19.0, "tokens": [1, 2]}


def told(**more: object) -> dict[str, tuple[Level, str]]:
    stages = {**SYSTEM, "steps": {"step_ms": 6.1}, "tokens": {"same": True, "words": "w"}}
    findings = check_child(Asked(path="p", address="a:1"), Told(**{"stages": stages, **more}))  # type: ignore[arg-type]
    return {each.name: (each.level, each.words) for each in findings}


def test_what_the_target_wrote_is_told() -> None:
    both = told(plain=TEXT, drafted={**TEXT, "ms_per_token": 10.0})["texts"]
    assert both[0] is Level.OK
    assert both[1].endswith("10.0 ms with drafts, the same text")
    assert "another text" in told(plain=TEXT, drafted={**TEXT, "tokens": [1, 3]})["texts"][1]
    assert told(plain=TEXT, end="the link broke")["texts"][0] is Level.WARN
    assert told(end="the link broke")["texts"] == (Level.FAIL, "the link broke")
    other = {**SYSTEM, "steps": {"step_ms": 60.0}, "tokens": {"same": False, "words": "id 7 is ..."}}
    findings = told(stages=other)
    assert findings["tokenizer"] == (Level.FAIL, "id 7 is ...")
    assert findings["draft step"][0] is Level.WARN
    assert "texts" not in findings
