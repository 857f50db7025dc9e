"""A draft model's file is tried by a process of its own, once; what ends that process is told here."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.llama import trial
from edge_client.llama.settings import LlamaSettings
from edge_client.llama.trial import Trials

pytestmark = pytest.mark.llama


@pytest.fixture
def file(model: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    path = tmp_path / "draft.gguf"
    path.write_bytes(model.read_bytes())
    return path


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[trial.Asked]:
    """What children were asked, each run as it is."""
    asked, run = [], trial._try

    def count(what: trial.Asked, limit: float) -> None:
        asked.append(what)
        run(what, limit)

    monkeypatch.setattr(trial, "_try", count)
    return asked


def deadly(model: Path) -> bytes:
    """A file that reads well, and that llama.cpp 0.5.0 dies of (SIGABRT): two tokens have one text."""
    return model.read_bytes().replace(b"<filler1>", b"<filler2>")


def test_a_file_is_tried_once_and_known_by_the_next_daemon(
    file: Path, tmp_path: Path, children: list[trial.Asked]
) -> None:
    settings, record = LlamaSettings(str(file)), tmp_path / "tried.json"
    Trials(record).ensure(settings, weights=False)
    Trials(record).ensure(settings, weights=False)
    assert [each.weights for each in children] == [False]
    Trials(record).ensure(settings, weights=True)
    Trials(record).ensure(settings, weights=True)
    Trials(record).ensure(settings, weights=False)
    assert [each.weights for each in children] == [False, True], "who passed whole has passed in part"


def test_a_file_that_has_changed_is_tried_again(
    file: Path, tmp_path: Path, children: list[trial.Asked]
) -> None:
    trials = Trials(tmp_path / "tried.json")
    trials.ensure(LlamaSettings(str(file)), weights=False)
    before = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # size, inode and mtime are the old ones
    trials.ensure(LlamaSettings(str(file)), weights=False)
    assert len(children) == 2


def test_what_passed_on_the_processor_is_tried_again_on_an_accelerator(
    file: Path, tmp_path: Path, children: list[trial.Asked]
) -> None:
    trials, settings = Trials(tmp_path / "tried.json"), LlamaSettings(str(file))
    trials.ensure(settings, weights=False)
    trials.ensure(replace(settings, gpu_layers=1), weights=False)
    assert [each.gpu_layers for each in children] == [0, 1]


def test_a_damaged_header_costs_no_process(file: Path, children: list[trial.Asked]) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="behind the end of the file"):
        Trials().ensure(LlamaSettings(str(file)), weights=True)
    assert not children


def test_a_file_that_llama_cpp_dies_of_gives_a_sentence(model: Path, file: Path, tmp_path: Path) -> None:
    file.write_bytes(deadly(model))
    record = tmp_path / "tried.json"
    for _ in range(2):  # nothing is kept of a file that failed
        with pytest.raises(UserError, match=r"the process that tried it was ended by SIG[A-Z]+.*fetch it"):
            Trials(record).ensure(LlamaSettings(str(file)), weights=False)
    assert not record.exists()


def test_a_file_that_llama_cpp_refuses_gives_its_words(model: Path, file: Path) -> None:
    file.write_bytes(model.read_bytes().replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"))
    with pytest.raises(UserError, match=r"cannot be loaded as a GGUF model.*blk\.1\.ffn_up"):
        Trials().ensure(LlamaSettings(str(file)), weights=True)


def test_a_child_that_hangs_is_ended(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr(trial, "CHILD", "hangs")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"has not loaded .* within 0 s"):
        Trials(patience=0.1).ensure(LlamaSettings(str(file)), weights=False)


@pytest.mark.parametrize("content", ["", "[1]", '{"/a": 3}', "{" * 100, "\0" * (1 << 18)])
def test_a_record_that_cannot_be_read_is_nothing(
    file: Path, tmp_path: Path, children: list[trial.Asked], content: str
) -> None:
    record = tmp_path / "tried.json"
    record.write_text(content)
    Trials(record).ensure(LlamaSettings(str(file)), weights=False)
    assert len(children) == 1
    assert list(json.loads(record.read_text())) == [str(file)]


def test_a_record_that_cannot_be_written_is_told_and_costs_no_more(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Trials(file / "tried.json").ensure(LlamaSettings(str(file)), weights=False)  # in no folder
    assert "tried again at the next start" in caplog.text


def test_the_oldest_file_is_forgotten(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_try", lambda asked, limit: None)
    record = tmp_path / "tried.json"
    for number in range(trial.MAX_KNOWN + 1):
        copy = tmp_path / f"{number}.gguf"
        copy.write_bytes(file.read_bytes())
        Trials(record).ensure(LlamaSettings(str(copy)), weights=False)
    assert [Path(name).stem for name in json.loads(record.read_text())] == [
        str(number) for number in range(1, trial.MAX_KNOWN + 1)
    ]


def test_the_end_of_a_child_is_told_with_its_last_line() -> None:
    killed = trial._why("m.gguf", -signal.SIGKILL, "", "loading\nout of memory\n")
    assert "was ended by SIGKILL (out of memory)" in killed
    assert "ended with code 3." in trial._why("m.gguf", 3, "", "")
    assert trial._why("m.gguf", 1, "the reason\n", "noise") == "the reason"
