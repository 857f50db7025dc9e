"""Laws in virtual time: neither dear masks nor a prompt of 32,000 tokens keep others waiting for long."""

from collections.abc import Callable

import numpy as np
import pytest

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.quotas import Quota, Quotas
from cloud_verifier.core.scheduler import VerifyScheduler
from common.mask_time import SHARE, TRY_EVERY
from common.messages import Commit, Open
from common.sampling import SamplingParams

INFO = TargetInfo("t", 64, 4096, 65536, (0,), b"")
STEP = 0.03
PLAIN = 1


class Machine:
    """An engine in virtual time. A step takes `STEP` or what `duration` says, and its sessions' masks."""

    def __init__(
        self,
        costs: dict[int, float] | None = None,
        info: TargetInfo = INFO,
        duration: Callable[[StepPlan], float] = lambda plan: STEP,
    ) -> None:
        self.scheduler = VerifyScheduler(info, SchedulerConfig())
        self.costs = costs or {}  # seconds of masks for a row, by session
        self.now = 0.0
        self.told: dict[int, list[float]] = {}  # when each session's tokens came
        self._duration = duration

    def open(self, key: int, grammar: str = "", tenant: str = "", prompt: int = 3, text: int = 2000) -> None:
        sampling = SamplingParams(max_tokens=text, ignore_eos=True, grammar=grammar)
        self.scheduler.on_connect(key, self.now)
        self.scheduler.on_open(key, Open((key,) * prompt, sampling, b""), self.now, Caller(tenant))

    def run(self, until: float) -> None:
        while self.now < until:
            self.scheduler.on_timer(self.now)
            if self.step() is None:
                timer = self.scheduler.next_timer_at
                assert timer is not None, "nothing is pending"
                self.now = max(self.now + 1e-4, min(timer, until))

    def step(self) -> float | None:
        """Seconds that a step took; None if there was nothing to evaluate."""
        plan = self.scheduler.next_step(self.now)
        if plan is None:
            return None
        times = tuple(
            (item.session, self.costs.get(item.session, 1e-4) * len(item.outputs))
            for item in plan.items
            if item.sampling.grammar and len(item.outputs)
        )
        choices = tuple(np.full(len(item.outputs), 5, np.int32) for item in plan.items)
        margins = tuple(each.astype(np.float32) for each in choices)
        duration = self._duration(plan) + sum(cost for _, cost in times)
        self.now += duration
        self.scheduler.on_step_done(StepResult(choices, margins, mask_times=times), self.now)
        for effect in self.scheduler.effects():
            if isinstance(message := getattr(effect, "message", None), Commit):
                self.told.setdefault(effect.session, []).extend([self.now] * len(message.tokens))
        return duration

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
    machine.scheduler.tenants.change(slow, 0.0)
    machine.open(2, "dear", tenant="slow")
    machine.open(3, "dear 3", tenant="other")
    machine.run(20.0)
    assert len(machine.told[2]) < 20
    assert len(machine.told[3]) >= 30


def test_a_session_that_ended_in_the_step_is_charged_too() -> None:
    machine = Machine(dict.fromkeys(range(2, 30), 0.04))
    machine.open(PLAIN)
    for key in range(2, 30):
        machine.open(key, f"dear {key}", tenant="x", text=1)
    machine.run(5.0)
    assert sum(gap - STEP for gap in machine.gaps(PLAIN)) <= (SHARE + 0.03) * 5.0


GPU = (0.012, 2e-5, 2e-8, 16)  # an 8B model: weights once a step, a row's arithmetic, a slot's 128 KiB
CPU = (0.004, 3e-4, 4e-8, 1)  # a small model on two cores: every row reads all of its context


def clocked(fixed: float, per_row: float, per_read: float, per: int) -> Machine:
    """Steps take exactly as long as a plane says."""

    def duration(plan: StepPlan) -> float:
        reads = sum(-(-len(each.tokens) // per) * len(each.prefix_slots) for each in plan.items)
        return fixed + per_row * plan.num_rows + per_read * reads

    return Machine(info=TargetInfo("clocked", 100, 2**20, 200_000, (), b"", per), duration=duration)


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 16])
@pytest.mark.parametrize(("model", "prompt"), [(GPU, 32_000), (CPU, 8000)], ids=["gpu", "cpu"])
def test_nobody_waits_twice_as_long_while_a_long_prompt_is_read(
    model: tuple[float, float, float, int], prompt: int, writers: int
) -> None:
    machine = clocked(*model)
    for key in range(1, writers + 1):
        machine.open(key, prompt=500, text=20_000)
    while any(session.num_prefill for session in machine.scheduler.sessions.values()):
        machine.step()
    usual = max(machine.step() or 0.0 for _ in range(100))
    machine.open(99, prompt=prompt)
    long = machine.scheduler.sessions[99]
    durations = list[float]()
    while long.num_prefill:
        durations.append(machine.step() or 0.0)
    assert max(durations) <= 2 * usual
    assert len(durations) < prompt / 2, "it is read faster than by the least"
