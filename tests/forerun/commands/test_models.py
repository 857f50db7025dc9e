"""`forerun models` and `forerun pull`: pairs that fit, and the files of a repository."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.llama import load_trial
from forerun.cli import main
from forerun.commands.models import DRAFTS, PAIRS
from tests.support.hub import REPOSITORY, Hub, serving_hub
from training.demo_pair import DRAFT_GGUF as DRAFT

MODEL = b"GGUF" + bytes(40)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with serving_hub() as served:
        served.files |= {"big.gguf": MODEL, "README.md": b"words", "deep/small.gguf": b"x"}
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        yield served


def _told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.parametrize("name", [REPOSITORY, f"hf://{REPOSITORY}/", f"hf://{REPOSITORY}@main"])
def test_a_repositorys_files_are_named_as_they_are_taken(
    name: str, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"hf://{name.removeprefix('hf://').rstrip('/')}"
    assert _told(capsys, "pull", name) == {"files": {f"{own}/big.gguf": 44, f"{own}/deep/small.gguf": 1}}


def test_a_repository_without_such_files_or_that_is_not_there_is_refused(hub: Hub) -> None:
    del hub.files["big.gguf"], hub.files["deep/small.gguf"]
    assert main(["pull", REPOSITORY]) == 2
    assert main(["pull", "nobody/nothing"]) == 2
    assert main(["pull", "one/two/three"]) == 2


def test_a_file_that_is_here_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "x.gguf").write_bytes(MODEL)
    assert _told(capsys, "pull", str(path)) == {"file": str(path)}


@pytest.mark.parametrize(
    "asked", [*dict.fromkeys(pair.target for pair in PAIRS), "qwen2.5-coder-14b-q8_0.gguf"]
)
def test_a_known_targets_drafts_are_told(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = _told(capsys, "models", "--drafts-for", asked)["pairs"]
    assert isinstance(found, list)
    assert len(found) == len(PAIRS)


@pytest.mark.parametrize(
    ("asked", "family"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5"),
        ("hf://bartowski/Qwen_Qwen3-30B-A3B-GGUF/Qwen_Qwen3-30B-A3B-Q4_K_M.gguf", "qwen3"),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama-3.1"),
        ("google_gemma-3-27b-it", "gemma-3"),
        ("SmolLM2-360M-Instruct", "smollm2"),
    ],
)
def test_a_draft_of_a_known_family_is_told(
    asked: str, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _told(capsys, "models", "--drafts-for", asked) == {
        "pairs": [],
        "repositories": [DRAFTS[family]],
        "files": [],
    }


@pytest.mark.parametrize(
    "asked", ["nobodys-model-7b", "Meta-Llama-3-8B-Instruct", "R1-0528-Qwen3-8B", "Qwen/Qwen3-0.6B"]
)
def test_a_target_without_a_known_draft_is_refused(asked: str) -> None:
    assert main(["models", "--drafts-for", asked]) == 2


def test_smaller_files_with_the_same_tokens_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    shutil.copy(DRAFT, draft := tmp_path / "draft.gguf")
    (tmp_path / "broken.gguf").write_bytes(MODEL)
    target = tmp_path / "target.gguf"
    target.write_bytes(DRAFT.read_bytes() + bytes(64))  # larger; what follows the tensors is not read
    assert _told(capsys, "models", "--drafts-for", str(target))["files"] == [str(draft)]


def test_a_draft_that_was_fetched_before_is_listed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the target is in the hub's folder, whose names are links."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (snapshot := tmp_path / "snapshots").mkdir()
    shutil.copy(DRAFT, tmp_path / "blob")
    (draft := snapshot / "draft.gguf").symlink_to(tmp_path / "blob")
    (target := snapshot / "target.gguf").write_bytes(DRAFT.read_bytes() + bytes(64))
    monkeypatch.chdir(tmp_path)
    assert _told(capsys, "models", "--drafts-for", str(target))["files"] == [str(draft)]
    relative = str(target.relative_to(tmp_path))
    assert len(_told(capsys, "models", "--drafts-for", relative)["files"]) == 1  # type: ignore[arg-type]


def test_a_target_whose_tokens_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").write_bytes(MODEL)
    (target := tmp_path / "qwen2.5-coder-7b.gguf").write_bytes(MODEL + bytes(64))
    assert main(["models", "--drafts-for", str(target)]) == 2


def test_files_are_tried_in_a_process_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file may end it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    tried = list[str]()
    monkeypatch.setattr(load_trial, "_try", lambda settings, *_: tried.append(settings.path))
    shutil.copy(DRAFT, draft := tmp_path / "draft.gguf")
    (target := tmp_path / "target.gguf").write_bytes(DRAFT.read_bytes() + bytes(64))
    assert main(["models", "--drafts-for", str(target)]) == 0
    assert tried == [str(target), str(draft)]
