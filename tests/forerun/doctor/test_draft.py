"""The draft's checks: a file that is none, one that is damaged, one that works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.llama.files import hash_of
from edge_client.settings import DraftSection
from forerun.doctor.device import Level
from forerun.doctor.draft import ChildQuestion, DraftReport, ask_child, check_child, find_file
from tests import wording


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.edge_client.draft.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("draft") / "tiny.gguf")


def level(path: Path | str, sha256: str = "") -> Level:
    return find_file(DraftSection(model=str(path), sha256=sha256))[1].level


def test_a_file_is_there_is_gguf_and_hashes_as_it_should(tmp_path: Path) -> None:
    assert level("") is Level.FAIL
    assert level(tmp_path / "none") is Level.FAIL
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"no model")
    assert level(path) is Level.FAIL
    path.write_bytes(b"GGUF and some more of them")
    assert level(path) is Level.OK
    assert level(path, hash_of(path).upper()) is Level.OK
    assert level(path, "0" * 64) is Level.FAIL
    assert find_file(DraftSection(model=str(path), sha256="0" * 64))[0] == "", "it is not loaded"


@pytest.mark.llama
def test_a_draft_that_works_is_timed(tiny: Path) -> None:
    asked = ChildQuestion(path=str(tiny), context=512)
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
    asked = ChildQuestion(path=str(cut), context=512)
    findings = {each.name: each for each in check_child(asked, ask_child(asked))}
    assert findings["draft loads"].level is Level.FAIL
    assert findings["draft loads"].words


def test_a_child_that_takes_too_long_is_ended() -> None:
    told = ask_child(ChildQuestion(), longest=0.001)
    wording.keep(told.end)
    (finding,) = check_child(ChildQuestion(), told)
    assert (finding.name, finding.level) == ("processor", Level.FAIL)


SYSTEM = {"system": {"info": "AVX2 = 1"}, "loaded": {"description": "d", "seconds": 0.1}}
TEXT = {"ms_per_token": 20.0, "step_ms": 19.0, "tokens": [1, 2]}


def told(**more: object) -> dict[str, tuple[Level, str]]:
    stages = {**SYSTEM, "steps": {"step_ms": 6.1}, "tokens": {"same": True, "words": "w"}}
    findings = check_child(ChildQuestion(path="p", address="a:1"), DraftReport(**{"stages": stages, **more}))  # type: ignore[arg-type]
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


async def child(asked: ChildQuestion) -> DraftReport:
    return await asyncio.to_thread(ask_child, asked)


@pytest.mark.llama
@pytest.mark.grpc
async def test_another_tokenizer_is_named_by_its_first_token(tiny: Path) -> None:
    from tests.support.tiny import running

    async with running() as system:
        told = await child(ChildQuestion(path=str(tiny), context=512, address=system.address))
    assert told.end == ""
    assert told.stages["tokens"]["same"] is False
    assert "the draft's tokenizer is not the target's: id 0 is" in told.stages["tokens"]["words"]
    assert told.plain is None


@pytest.mark.llama
@pytest.mark.grpc
async def test_a_verifier_that_goes_away_is_told(tiny: Path) -> None:
    told = await child(ChildQuestion(path=str(tiny), context=512, address="127.0.0.1:1"))
    assert (told.number("steps", "step_ms") or 0.0) > 0, "what was found out before stands"
    assert "cannot be reached" in told.end


@pytest.mark.llama
@pytest.mark.grpc
def test_without_a_file_only_the_processor_is_asked_about() -> None:
    told = ask_child(ChildQuestion())
    assert list(told.stages) == ["system"]


@pytest.mark.llama
@pytest.mark.grpc
async def test_the_draft_is_ranked_by_the_targets_own_text(tiny: Path) -> None:
    """The walk counts how often the draft's best token is the text's: on its own greedy text, always."""
    from common.llama.model import LlamaSettings
    from common.llama.runtime import LlamaRuntime
    from common.sampling import SamplingParams
    from edge_client.core.effects import DraftRow, Reroot
    from edge_client.draft.group import DraftGroup, MemberDrafter
    from forerun.doctor.draft import _draft_steps

    with LlamaRuntime(LlamaSettings(str(tiny), n_ctx=512)) as runtime:
        drafter = MemberDrafter(DraftGroup(runtime, 1))
        prompt = tuple(runtime.tokenize("the and", True))
        drafter.start(prompt, 1, SamplingParams())
        way = list(prompt)
        for number in range(1, 13):
            (expansion,) = drafter.expand([DraftRow(number, None, way[-1], len(way) - 1)])
            way.append(expansion.tokens[0])
            drafter.reroot(Reroot(((number + 1, way[-1]),), ()))
        own = tuple(way[len(prompt) :])
        found = _draft_steps(runtime, prompt, own)
        others = _draft_steps(runtime, prompt, tuple((token + 1) % 256 for token in own))
    assert (found["right"], found["of"]) == (12, 12)
    assert others["right"] < 12
