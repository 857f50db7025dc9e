"""A wrong setting of a benchmark is refused in a sentence before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.__main__ import main
from lab.benchmarks import simulator_speed
from tests.support.refusals import refuse

SPEED = "--tokens 20 --repeats 1 --share 0.002 --scheme server_streaming"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--share 0.0001", "0 clients with a text every 60 s ask for 0"),
        ("--every 1", "ask for 600 in 10 minutes"),
        ("--scheme sync_best", "sync_best is a search"),
        ("--trace not/there.csv", "there.csv cannot be read"),
    ],
)
def test_a_crowd_that_cannot_be_simulated_is_refused(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulator_speed, "MAX_SESSIONS", 500)
    assert simulator_speed.main([*SPEED.split(), *words.split()]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "…" not in told, "something ran"


CAPACITY = "bench capacity --target formula --drafts off"


@pytest.mark.grpc
@pytest.mark.llama
@pytest.mark.parametrize(
    "line",
    [
        f"{CAPACITY} --sessions 0",
        f"{CAPACITY} --rounds 0",
        f"{CAPACITY} recorded",
        f"{CAPACITY} --policy x",
    ],
)
def test_nonsense_is_refused_before_anything_is_done(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(main, line, tmp_path, monkeypatch, capsys)
