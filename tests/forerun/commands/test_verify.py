"""`forerun verify` as a process: what a supervisor sees of it before it serves."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloud_verifier.server.serving import warn_of_plain_text
from forerun.cli import main
from tests.cloud_verifier.configured import configured
from training.demo_pair import DRAFT_GGUF

TARGET = Path(__file__).parents[3] / "lab" / "demo_models" / "target"


def end_when_read(pipe: Path, reader: subprocess.Popen[str]) -> None:
    """End a pipe whenever somebody reads it, until the process is gone; nothing announces that."""
    while reader.poll() is None:
        with contextlib.suppress(OSError):  # nobody does yet
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        time.sleep(0.01)


def name(model: str, *words: str) -> str:
    return configured(*words, model=model).target.served_name


def test_edges_are_not_told_where_the_model_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "secret" / "Qwen2.5-7B"
    folder.mkdir(parents=True)
    assert name(str(folder)) == "Qwen2.5-7B"
    assert name(f"{folder}/") == "Qwen2.5-7B"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert name("~/secret/Qwen2.5-7B") == "Qwen2.5-7B"
    assert name("Qwen/Qwen2.5-7B") == "Qwen/Qwen2.5-7B"
    assert name(str(folder), "--name", "large") == "large"


@pytest.mark.grpc
@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ([], False),
        (["--listen", "0.0.0.0:0"], True),
        (["--listen", "192.0.2.1:5"], True),
        (["--listen", "[::1]:5"], False),
        (["--listen", "0.0.0.0:0", "--tls-cert", "c", "--tls-key", "k"], False),
    ],
)
def test_plain_text_on_a_network_is_said(
    words: list[str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_plain_text(configured(*words).server)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned


@pytest.mark.torch
@pytest.mark.grpc
def test_one_that_is_told_to_go_while_it_loads_goes(tmp_path: Path) -> None:
    """With a status of its own: the first process of a container hears no signal that it does not ask for.
    One of its weights is a pipe, so it loads until somebody writes there. That is after the signal."""
    model = tmp_path / "target"
    shutil.copytree(TARGET, model)
    pipe = model / "a.safetensors"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "forerun", "verify", "--model", str(model), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any(str(model) in line for line in process.stderr), "it tells what it loads"
            process.send_signal(signal.SIGTERM)
            end_when_read(pipe, process)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        pytest.param(TARGET, ("--dtype", "bfloat16", "--slots", "1024"), marks=pytest.mark.torch),
        pytest.param(DRAFT_GGUF, ("--threads", "1", "--slots", "1024"), marks=pytest.mark.llama),
    ],
)
def test_a_model_is_probed_without_being_served(
    model: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--model", str(model), "--check", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["served"] is True


@pytest.mark.torch
def test_a_model_that_is_not_served_is_an_error_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud_verifier.engine.tiny import plain_model

    plain_model("llama4_text").config.save_pretrained(tmp_path)
    assert main(["verify", "--model", str(tmp_path), "--check"]) == 2
    assert "cannot be served: it has layers of kind chunked_attention" in capsys.readouterr().err
