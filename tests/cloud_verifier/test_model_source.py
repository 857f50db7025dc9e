"""A mistyped model is refused before torch is imported and before the hub is asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloud_verifier.model_source import drafter_kind, folder_of
from common.errors import UserError

HUB_IDS = ["gpt2", "org/model", "Org-1/Model_2.5-7B", "org/model-Q4"]
PATHS = ["a/b/c", "a/b/", "/a", "./a", "../a", "~/a", "~nobody/a", "a//b", "a\\b", "a b", "tests/typo", ""]


@pytest.mark.parametrize("source", HUB_IDS)
def test_a_hub_id_is_left_to_the_hub(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_of(source) is None


@pytest.mark.parametrize("source", PATHS)
def test_a_path_of_nothing_is_no_hub_id(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        folder_of(source)


def test_a_folder_needs_a_models_configuration(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        folder_of(str(tmp_path))
    (tmp_path / "m.gguf").touch()
    with pytest.raises(UserError, match=r"m\.gguf"):
        folder_of(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert folder_of(str(tmp_path)) == tmp_path
    with pytest.raises(UserError):
        folder_of(str(tmp_path / "config.json"))


@pytest.mark.parametrize("source", ["hf://org/model", "https://huggingface.co/org/model"])
def test_a_remote_name_without_a_file_is_told_the_form(source: str) -> None:
    with pytest.raises(UserError, match="organisation/repository"):
        folder_of(source)


@pytest.mark.parametrize(
    ("source", "kind"),
    [("mtp", "mtp"), ("exit:8", "exit"), ("exit:", "exit"), ("gpt2", None), ("nothing:8", None), ("", None)],
)
def test_a_drafter_is_of_the_offered_kind_that_it_names(source: str, kind: str | None) -> None:
    assert drafter_kind(source) == kind


def test_an_existing_path_is_no_kind_of_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mtp").mkdir()
    Path("exit:8").touch()
    assert (drafter_kind("mtp"), drafter_kind("exit:8")) == (None, None)


WITHOUT = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["huggingface_hub"] = None  # imports fail
from forerun.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.grpc
@pytest.mark.parametrize(
    "words",
    [
        ("--model", "path/to/nothing"),
        ("--model", "path/to/nothing.gguf"),
        ("--model", "org/model", "--drafter", "path/to/nothing"),
    ],
)
def test_verify_refuses_a_mistyped_path_without_torch(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "verify", *words, "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "path/to/nothing" in done.stderr
    assert "pip install" not in done.stderr
