"""A draft model's file is tried by a process of its own, once; what ends that process is told here."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from common.errors import UserError
from common.llama import load_trial
from common.llama.load_trial import ModelTrials
from common.llama.model import LlamaSettings
from tests import wording

pytestmark = pytest.mark.llama


class Trial(NamedTuple):
    gpu_layers: int
    batch_invariant: bool
    weights: bool


@pytest.fixture
def file(model: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    path = tmp_path / "draft.gguf"
    path.write_bytes(model.read_bytes())
    return path


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """The trials of children, each run as it is."""
    asked, run = list[Trial](), load_trial._try

    def count(settings: LlamaSettings, weights: bool, patience: float) -> None:
        asked.append(Trial(settings.gpu_layers, settings.batch_invariant, weights))
        run(settings, weights, patience)

    monkeypatch.setattr(load_trial, "_try", count)
    return asked


def deadly(model: Path) -> bytes:
    """A file that reads well, and that llama.cpp 0.5.0 dies of (SIGABRT): two tokens have one text."""
    return model.read_bytes().replace(b"<filler1>", b"<filler2>")


def test_a_file_is_tried_once_and_known_by_the_next_daemon(
    file: Path, tmp_path: Path, children: list[Trial]
) -> None:
    settings, record = LlamaSettings(str(file)), tmp_path / "tried.json"
    ModelTrials(record).ensure(settings, weights=False)
    ModelTrials(record).ensure(settings, weights=False)
    assert [trial.weights for trial in children] == [False]
    ModelTrials(record).ensure(settings, weights=True)
    ModelTrials(record).ensure(settings, weights=True)
    ModelTrials(record).ensure(settings, weights=False)
    assert [trial.weights for trial in children] == [False, True], "who passed whole has passed in part"


def test_a_file_is_tried_again_if_it_has_changed_or_other_kernels_compute_it(
    file: Path, tmp_path: Path, children: list[Trial]
) -> None:
    trials, settings = ModelTrials(tmp_path / "tried.json"), LlamaSettings(str(file))
    trials.ensure(settings, weights=False)
    before = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # size, inode and mtime are the old ones
    trials.ensure(settings, weights=False)
    trials.ensure(replace(settings, gpu_layers=1), weights=False)
    trials.ensure(replace(settings, batch_invariant=True), weights=False)
    assert [trial[:2] for trial in children] == [(0, False), (0, False), (1, False), (0, True)]


def test_a_file_that_llama_cpp_dies_of_gives_a_sentence(model: Path, file: Path, tmp_path: Path) -> None:
    file.write_bytes(deadly(model))
    record = tmp_path / "tried.json"
    for _ in range(2):  # nothing is kept of a file that failed
        with wording.raises(UserError):
            ModelTrials(record).ensure(LlamaSettings(str(file)), weights=False)
    assert not record.exists()


def test_a_file_that_llama_cpp_refuses_gives_its_words(model: Path, file: Path) -> None:
    file.write_bytes(model.read_bytes().replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"))
    with wording.raises(UserError):
        ModelTrials().ensure(LlamaSettings(str(file)), weights=True)


def test_a_child_that_hangs_is_ended(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(load_trial, "CHILD", "hangs")
    monkeypatch.setattr(load_trial, "PATIENCE", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with wording.raises(UserError):
        ModelTrials().ensure(LlamaSettings(str(file)), weights=False)


@pytest.mark.parametrize("content", ["", "[1]", '{"/a": 3}', "{" * 100, "\0" * (1 << 18)])
def test_a_record_that_cannot_be_read_is_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(load_trial, "_try", lambda settings, weights, patience: None)
    record = tmp_path / "tried.json"
    record.write_text(content)
    ModelTrials(record).ensure(LlamaSettings(str(file)), weights=False)
    assert str(file) in json.loads(record.read_text())


def test_a_record_that_cannot_be_written_is_logged_only(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    ModelTrials(file / "tried.json").ensure(LlamaSettings(str(file)), weights=False)  # in no folder
    assert "tried again at the next start" in caplog.text


def test_the_oldest_file_is_forgotten(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_trial, "_try", lambda settings, weights, patience: None)
    record = tmp_path / "tried.json"
    for number in range(load_trial.MAX_KEPT + 1):
        copy = tmp_path / f"{number}.gguf"
        copy.write_bytes(file.read_bytes())
        ModelTrials(record).ensure(LlamaSettings(str(copy)), weights=False)
    assert [Path(name).stem for name in json.loads(record.read_text())] == [
        str(number) for number in range(1, load_trial.MAX_KEPT + 1)
    ]
