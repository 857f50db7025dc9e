"""A prompt of 32,000 tokens comes in while others write: none of them waits twice as long for a token."""

from __future__ import annotations

import numpy as np
import pytest

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetInfo
from common.messages import Open
from common.sampling import SamplingParams

GPU = (0.012, 2e-5, 2e-8, 16)  # an 8B model: weights once a step, a row's arithmetic, a slot's 128 KiB
CPU = (0.004, 3e-4, 4e-8, 1)  # a small model on two cores: every row reads all of its context


class Clocked:
    """A scheduler whose engine takes exactly as long as a plane says."""

    def __init__(self, fixed: float, per_row: float, per_read: float, rows_per_read: int) -> None:
        info = TargetInfo("clocked", 100, 2**20, 200_000, (), b"", rows_per_read)
        self.scheduler = VerifyScheduler(info, SchedulerConfig())
        self.now = 0.0
        self._fixed, self._per_row, self._per_read, self._per = fixed, per_row, per_read, rows_per_read

    def open(self, key: int, prompt: int, text: int = 20_000) -> None:
        tokens = tuple(key for _ in range(prompt))
        self.scheduler.on_open(key, Open(tokens, SamplingParams(max_tokens=text), b""), self.now)

    def step(self) -> float:
        """Seconds that it took."""
        plan = self.scheduler.next_step(self.now)
        assert plan is not None
        duration = self._duration(plan)
        self.now += duration
        choices = tuple(np.full(len(item.outputs), 5, np.int32) for item in plan.items)
        sure = tuple(np.ones(len(item.outputs), np.float32) for item in plan.items)
        self.scheduler.on_step_done(StepResult(choices, sure), self.now)
        self.scheduler.effects()
        return duration

    def _duration(self, plan: StepPlan) -> float:
        reads = sum(-(-len(each.tokens) // self._per) * len(each.prefix_slots) for each in plan.items)
        return self._fixed + self._per_row * plan.num_rows + self._per_read * reads


@pytest.mark.parametrize("writers", [1, 16])
@pytest.mark.parametrize(("machine", "prompt"), [(GPU, 32_000), (CPU, 8000)], ids=["gpu", "cpu"])
def test_nobody_waits_twice_as_long_while_a_long_prompt_is_read(
    machine: tuple[float, float, float, int], prompt: int, writers: int
) -> None:
    clocked = Clocked(*machine)
    for key in range(1, writers + 1):
        clocked.open(key, 500)
    while any(session.num_prefill for session in clocked.scheduler.sessions.values()):
        clocked.step()
    usual = max(clocked.step() for _ in range(100))
    clocked.open(99, prompt)
    long = clocked.scheduler.sessions[99]
    durations = list[float]()
    while long.num_prefill:
        durations.append(clocked.step())
    assert max(durations) <= 2 * usual
    assert len(durations) < prompt / 2, "it is read faster than by the least"


def test_alone_it_is_read_as_fast_as_the_engine_can() -> None:
    clocked = Clocked(*GPU)
    clocked.open(1, 32_000)
    long, steps = clocked.scheduler.sessions[1], 0
    while long.num_prefill:
        clocked.step()
        steps += 1
    assert steps == 32  # 1,024 tokens at a time, four times a chunk
