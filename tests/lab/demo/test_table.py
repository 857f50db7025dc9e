"""What the demo prints of a comparison."""

import re
from dataclasses import replace

import pytest

from lab.demo.command import DemoOptions, print_table
from lab.demo.comparison import HEADS_ALONE, SchemeComparison
from simulator.figures import Figures
from simulator.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST

OURS = Figures(10.0, 10.0, 12.0, 90.0, 0.3, 4.0, 1.0, 2.0, 3.0, 40.0, 30.0, True)
PACES = {SERVER_STREAMING: 36.4, SYNC_BEST: 20.0, HEADS_ALONE: 15.0, FORERUN: 10.0}


def test_the_last_line_says_how_many_times_as_fast_as_streaming(capsys: pytest.CaptureFixture[str]) -> None:
    schemes = {name: replace(OURS, ms_per_token=pace) for name, pace in PACES.items()}
    print_table(DemoOptions(), SchemeComparison(schemes, 4, {}))
    last = capsys.readouterr().out.splitlines()[-3:]
    assert [re.findall(r"\d+\.\d+", line) for line in last] == [["1.5"], ["2.0"], ["3.6"]]
    assert "server streaming" in last[-1]
