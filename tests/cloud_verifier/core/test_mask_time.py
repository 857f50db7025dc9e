"""Law: sessions whose masks take long delay the others by a bounded part of the time, whoever they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.quotas import Quota, Quotas
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetInfo
from common.mask_time import SHARE, TRY_EVERY
from common.messages import Commit, Open
from common.sampling import SamplingParams

INFO = TargetInfo("t", 8, 4096, 65536, (0,), b"")
STEP = 0.03
PLAIN = 1


def opening(grammar: str = "") -> Open:
    return Open((1, 2, 3), SamplingParams(max_tokens=2000, ignore_eos=True, grammar=grammar), b"")


class Machine:
    """An engine in virtual time: a step takes `STEP` and the masks of its sessions."""

    def __init__(self, costs: dict[int, float]) -> None:
        self.scheduler = VerifyScheduler(INFO, SchedulerConfig(max_sessions=64, max_tenant_share=1.0))
        self.costs = costs  # seconds of masks for a row, by session
        self.now = 0.0
        self.told: dict[int, list[float]] = {}  # when each session's tokens came

    def open(self, key: int, grammar: str = "", tenant: str = "") -> None:
        self.scheduler.on_connect(key, self.now)
        self.scheduler.on_open(key, opening(grammar), self.now, Caller(tenant))

    def run(self, until: float) -> None:
        while self.now < until:
            self.scheduler.on_timer(self.now)
            plan = self.scheduler.next_step(self.now)
            if plan is None:
                timer = self.scheduler.next_timer_at
                assert timer is not None, "nothing is pending"
                self.now = max(self.now + 1e-4, min(timer, until))
                continue
            result = self._result(plan)
            self.now += STEP + sum(cost for _, cost in result.mask_times)
            self.scheduler.on_step_done(result, self.now)
            for effect in self.scheduler.effects():
                if isinstance(message := getattr(effect, "message", None), Commit):
                    self.told.setdefault(effect.session, []).extend([self.now] * len(message.tokens))

    def _result(self, plan: StepPlan) -> StepResult:
        choices = tuple(np.full(len(item.outputs), 5, np.int32) for item in plan.items)
        times = tuple(
            (item.session, self.costs.get(item.session, 1e-4) * len(item.outputs))
            for item in plan.items
            if item.sampling.grammar and len(item.outputs)
        )
        return StepResult(choices, tuple(each.astype(np.float32) for each in choices), mask_times=times)

    def gaps(self, key: int) -> list[float]:
        return [float(gap) for gap in np.diff(np.unique(self.told[key]))]


@pytest.mark.parametrize("grammars", ["one", "another each"])
def test_dear_masks_of_eight_sessions_leave_a_plain_one_its_pace(grammars: str) -> None:
    machine = Machine(dict.fromkeys(range(2, 10), 0.02))
    machine.open(PLAIN)
    machine.run(0.5)
    for key in range(2, 10):
        machine.open(key, "dear" if grammars == "one" else f"dear {key}", tenant="other")
    machine.run(20.0)
    gaps = machine.gaps(PLAIN)
    assert max(gaps) < 3 * STEP
    assert sum(gap - STEP for gap in gaps) <= (SHARE + 0.02) * 20.0
    for key in range(2, 10):
        assert len(machine.told[key]) >= 4, "they wait, and they do get on"


def test_masks_that_become_dear_later_delay_one_step() -> None:
    machine = Machine({})
    machine.open(PLAIN)
    for key in range(2, 10):
        machine.open(key, "a trap")
    machine.run(2.0)
    assert len(machine.told[9]) > 30, "cheap so far, so nobody waits"
    machine.costs.update(dict.fromkeys(range(2, 10), 0.02))
    machine.run(20.0)
    assert sum(gap > 3 * STEP for gap in machine.gaps(PLAIN)) <= 1


def test_a_new_grammar_does_not_wait_for_what_other_masks_owe() -> None:
    machine = Machine({})
    machine.open(PLAIN)
    for key in range(2, 10):
        machine.open(key, "a trap")
    machine.run(2.0)
    machine.costs.update(dict.fromkeys(range(2, 10), 0.2))
    machine.run(4.0)
    began = machine.now
    machine.open(10, "an honest one")
    machine.open(11, "dear as well")
    machine.costs[11] = 0.2
    machine.open(12, "another honest one")
    machine.run(8.0)
    assert machine.told[10][0] < began + 4 * STEP, "nobody before it"
    assert machine.told[12][0] < began + 0.2 + TRY_EVERY + 8 * STEP, "one before it"
    assert len(machine.told[11]) == 1, "it waits for the others and for itself: 1.8 s of masks"


def test_cheap_masks_wait_for_nobody() -> None:
    machine = Machine({})
    machine.open(PLAIN)
    for key in range(2, 6):
        machine.open(key, "a schema")
    machine.run(2.0)
    counts = {len(told) for told in machine.told.values()}
    assert max(counts) - min(counts) <= 1


def test_a_tenant_with_one_dear_session_is_served_as_much_as_one_with_many() -> None:
    machine = Machine(dict.fromkeys(range(2, 12), 0.02))
    machine.open(PLAIN)
    for key in range(2, 11):
        machine.open(key, f"dear {key}", tenant="many")
    machine.open(11, "dear", tenant="one")
    machine.run(30.0)
    many = sum(len(machine.told[key]) for key in range(2, 11))
    assert len(machine.told[11]) >= 0.7 * many


def test_a_tenant_beyond_its_rate_keeps_no_other_from_its_turn() -> None:
    machine = Machine({2: 0.02, 3: 0.02})
    slow = Quotas(tenants={"slow": Quota(positions_per_second=0.5, burst=8)})
    machine.scheduler.rationing.change(slow, 0.0)
    machine.open(2, "dear", tenant="slow")
    machine.open(3, "dear 3", tenant="other")
    machine.run(20.0)
    assert len(machine.told[2]) < 20
    assert len(machine.told[3]) >= 30


def test_a_session_that_ended_in_the_step_is_charged_too() -> None:
    machine = Machine({2: 0.04})
    machine.open(PLAIN)
    for key in range(2, 30):
        machine.costs[key] = 0.04
        machine.scheduler.on_connect(key, machine.now)
        request = opening(f"dear {key}")
        sampling = replace(request.sampling, max_tokens=1)
        machine.scheduler.on_open(key, replace(request, sampling=sampling), machine.now, Caller("x"))
    machine.run(5.0)
    assert sum(gap - STEP for gap in machine.gaps(PLAIN)) <= (SHARE + 0.03) * 5.0
