"""Some of the records, at every run of the tests; `python -m tests.golden compare` looks at all."""

import json
from pathlib import Path

import pytest

from common.errors import CapacityError, UnavailableError
from edge_client.core.effects import Mode, ModeStatus
from tests.golden.__main__ import FOLDER
from tests.golden.records import RECORDS, differences, digest, plain, world_of

CPUINFO = Path("/proc/cpuinfo")
LIKE_RECORDED = CPUINFO.exists() and "avx2" in CPUINFO.read_text(encoding="utf-8")
"""Elsewhere the last digits of logarithms differ, and now and then a decision with them."""

AGAIN = "the behaviour has changed; if it was meant to, run `python -m tests.golden record`"


@pytest.mark.parametrize("name", ["commands", "metrics"])
def test_names_that_users_know_are_as_recorded(name: str) -> None:
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert not differences(recorded, json.loads(json.dumps(RECORDS[name]())), name), AGAIN


def test_endpoints_stream_what_was_recorded() -> None:
    recorded = json.loads((FOLDER / "streams.json").read_text(encoding="utf-8"))
    assert not differences(recorded, RECORDS["streams"](), "streams"), AGAIN


@pytest.mark.skipif(not LIKE_RECORDED, reason="recorded on Linux with AVX2, whose last digits are others")
@pytest.mark.parametrize("seed", range(0, 2000, 50))
def test_both_machines_do_what_was_recorded(seed: int) -> None:
    recorded = json.loads((FOLDER / "worlds.json").read_text(encoding="utf-8"))
    assert world_of(seed) == recorded[seed], AGAIN


def test_words_are_in_no_record() -> None:
    assert digest(CapacityError("full")) == digest(CapacityError("no room")) != digest(UnavailableError(""))
    assert plain(ModeStatus(Mode.AHEAD, "so it is")) == plain(ModeStatus(Mode.AHEAD, "for another reason"))
