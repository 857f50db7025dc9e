"""A soak calls a leak a leak and a stall a stall, and finds neither in a verifier that has none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from common.errors import UserError
from forerun.bench.formula import FORMULA
from forerun.bench.soak import SoakPlan, judged
from forerun.cli import main

PLAN = SoakPlan(target=FORMULA, seconds=100.0, sample=5.0)
REST = {"num_slots": 100, "free_slots": 60, "cached_slots": 40, "reserved_slots": 0, "sessions": 0}
AFTER = {**REST, "objects": 10, "preempted": 0}


def clients(wait: float = 50.0, **more: int) -> dict[str, Any]:
    quiet = {"p50": 10.0, "p95": 20.0}
    counts = {"tokens": 100, "texts": 2, "different": 0, "refused": 0, "failed": 0, **more}
    return {**counts, "longest_wait_ms": wait, "gap_ms": quiet, "ttft_ms": quiet}


def samples(sizes: list[float], **more: Any) -> list[dict[str, Any]]:
    return [
        {"clients": clients(**more), "verifier": {"memory_bytes": size * 1e6, "sessions": 5}}
        for size in sizes
    ]


def kept(found: list[dict[str, Any]], after: dict[str, Any] = AFTER) -> dict[str, bool]:
    result: dict[str, bool] = judged(PLAN, found, found, {"objects": 9}, after)["kept"]
    return result


def test_a_quiet_run_keeps_every_promise() -> None:
    assert all(kept(samples([500.0] * 20)).values())


def test_memory_that_goes_on_growing_is_not_flat() -> None:
    assert not kept(samples([500.0 + 5 * each for each in range(20)]))["memory_flat"]


def test_memory_that_grows_at_first_alone_is_flat() -> None:
    assert kept(samples([300.0, 400.0, 490.0, *[500.0] * 17]))["memory_flat"]


@pytest.mark.parametrize("wrong", [{"free_slots": 59}, {"reserved_slots": 4}, {"sessions": 1}])
def test_what_is_not_returned_is_a_leak(wrong: dict[str, int]) -> None:
    assert not kept(samples([500.0] * 20), {**AFTER, **wrong})["no_leak"]


def test_a_long_wait_is_a_stall() -> None:
    one = samples([500.0] * 20)
    one[7]["clients"] = clients(wait=5001.0)
    assert not kept(one)["no_stall"]


def test_other_texts_and_failures_are_told() -> None:
    assert not kept(samples([500.0] * 20, different=1))["texts_identical"]
    assert not kept(samples([500.0] * 20, failed=1))["nobody_failed"]


@pytest.mark.parametrize("wrong", [{"active": 600}, {"seconds": 20.0}, {"growth": 0.0}, {"policy": "none"}])
def test_what_is_no_soak_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        replace(PLAN, **wrong)


@pytest.mark.grpc
def test_the_command_holds_idle_and_active_sessions_open(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--target", FORMULA, "--open", "6", "--active", "2", "--minutes", "0.02", "--sample", "0.1"]
    words += ["--think", "0.2", "--texts", "4", "--max-tokens", "24", "--step-floor", "5", "--no-pin"]
    # Of a process that lives for a second the memory tells nothing.
    assert main(["bench", "soak", *words, "--growth", "10", "--stall", "60", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert all(report["kept"].values())
    assert 2 < report["most_sessions"] <= 6
    assert report["tokens"] > 0
    assert report["slots_leaked"] == 0
    assert len(report["samples"]) >= 10
    assert {"memory_mb", "sessions", "gap_ms_p95"} <= set(report["samples"][0])
