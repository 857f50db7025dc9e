"""Many open sessions for a long time: does memory stay flat, does everybody go on, are all slots returned?"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from common.errors import UserError
from common.figures import rounded
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from forerun.bench.capacity import Plan, references
from forerun.bench.job import LIVE, ORACLE, RECORDED, Drafts, Job
from forerun.bench.stage import Stage, StageSettings
from forerun.bench.texts import Text, prompts_of

MEGABYTE = 1e6

SETTLED = 0.2
"""Share of the run that does not count for memory: allocators fill their pools, caches their tables."""

SPAN = 0.2
"""Share of the run whose latencies are told, at its beginning and at its end."""


ORACLE_DRAFTS = Drafts(ORACLE, 0.8)


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """One long run."""

    target: str
    open_sessions: int = 500
    active: int = 50
    seconds: float = 600.0
    sample: float = 5.0  # seconds
    think: float = 30.0  # seconds between two tokens of an idle session
    drafts: Drafts = ORACLE_DRAFTS
    policy: str = "adaptive"
    draft_time: float = 0.0  # seconds
    max_tokens: int = 64
    num_texts: int = 32
    stall: float = 5.0  # seconds without a token that count as one
    growth: float = 0.05  # of memory that is still called flat
    seed: int = 1
    step_floor_ms: float = 0.0
    client_processes: int = 1
    threads: int = 1
    device: str = "cpu"
    pin: bool = True
    verifier: str = ""

    def __post_init__(self) -> None:
        make_policy(self.policy)
        for name in ("active", "seconds", "sample", "think", "max_tokens", "num_texts", "stall", "growth"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.open_sessions < self.active:
            raise UserError(f"{self.open_sessions} open sessions cannot have {self.active} active ones")
        if self.seconds < 10 * self.sample:
            raise UserError(f"{self.seconds:g} seconds are fewer than ten samples of {self.sample:g}")
        if self.drafts.kind in (RECORDED, LIVE):
            raise UserError("a soak's drafts are `off` or an oracle's")

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.max_tokens, seed=self.seed, ignore_eos=True)

    @property
    def references(self) -> Plan:
        """How the texts are written that all others are held against."""
        return Plan(
            target=self.target, draft="", sessions=(1,), drafts=(), rivals=(), rival_sessions=(),
            policy="off", sampling=self.sampling, repeats=1, rounds=1, least_texts=self.num_texts,
            sequential=1,
        )  # fmt: skip

    def stage(self, prompts: Sequence[Sequence[int]]) -> StageSettings:
        slots = self.open_sessions * (max(map(len, prompts)) + self.max_tokens + 32)
        given = ["--model", self.target, "--slots", str(slots), "--max-sessions", str(self.open_sessions)]
        given += ["--threads", str(self.threads), "--device", self.device, "--no-recall"]
        given += ["--step-floor", str(self.step_floor_ms)] if self.step_floor_ms else []
        return StageSettings((*given, *shlex.split(self.verifier)), self.client_processes, self.pin)

    def job(self, address: str, texts: Sequence[Text]) -> Job:
        return Job(
            address=address,
            numbers=tuple(text.number for text in texts),
            drafts=self.drafts,
            policy=self.policy,
            sampling=self.sampling,
            clients=self.active,
            duration=self.seconds,
            idle=self.open_sessions - self.active,
            think=self.think,
            draft_time=self.draft_time,
            seed=self.seed,
            sample=self.sample,
            keep=False,
        )


async def measure(
    plan: SoakPlan, tokens: Sequence[Sequence[int]], progress: Callable[[float, float, str], None]
) -> dict[str, Any]:
    """The whole run. Returns the report's figures."""
    prompts = prompts_of(tokens, plan.num_texts)
    samples = list[dict[str, Any]]()
    async with Stage(plan.stage(prompts)) as stage:
        texts = await references(plan.references, stage, prompts)
        await stage.learn(texts)
        before = await stage.verifier.take(objects=True)

        async def sample(told: dict[str, Any]) -> None:
            samples.append({"clients": told, "verifier": await stage.verifier.take(objects=True)})
            at = told["now"] - samples[0]["clients"]["now"] + plan.sample
            progress(min(at, plan.seconds), plan.seconds, _in_words(samples[-1]))

        outcome = await stage.run(plan.job(stage.verifier.address, texts), sample)
        after = await _at_rest(stage)
    rests = [{"clients": rest, "verifier": None} for rest in outcome.rests]
    return {**judged(plan, samples, [*samples, *rests], before, after), "samples": _brief(samples)}


async def _at_rest(stage: Stage) -> dict[str, Any]:
    """What the verifier tells when the last session is gone; it may still be in a step."""
    told = await stage.verifier.take(objects=True)
    for _ in range(100):
        if told["idle"]:
            break
        told = await stage.verifier.take(objects=True)
    return told


def judged(
    plan: SoakPlan,
    samples: Sequence[dict[str, Any]],
    everything: Sequence[dict[str, Any]],
    before: dict[str, Any],
    after: dict[str, Any],
) -> dict[str, Any]:
    """The figures, and whether each promise was kept. `everything` also has what came after the last
    sample."""
    usual = samples[: int(plan.seconds / plan.sample) * plan.client_processes]
    memory = _memory([each["verifier"]["memory_bytes"] for each in usual], plan)
    longest = max(each["clients"]["longest_wait_ms"] for each in usual)
    total = {
        name: sum(each["clients"][name] for each in everything)
        for name in ("tokens", "texts", "different", "refused", "failed")
    }
    leaked = after["num_slots"] - after["free_slots"] - after["cached_slots"]
    span = max(1, round(SPAN * len(usual)))
    return {
        "memory": memory,
        "objects": {"before": before["objects"], "after": after["objects"]},
        "longest_wait_ms": rounded(longest),
        "most_sessions": max(each["verifier"]["sessions"] for each in usual),
        "slots_leaked": leaked,
        "slots_reserved": after["reserved_slots"],
        "sessions_left": after["sessions"],
        "preempted": after["preempted"],
        **total,
        "at_the_start": _latencies(usual[1 : 1 + span]),
        "at_the_end": _latencies(usual[-span:]),
        "kept": {
            "memory_flat": memory["growth"] <= plan.growth,
            "no_leak": not leaked and not after["reserved_slots"] and not after["sessions"],
            "no_stall": longest <= 1e3 * plan.stall,
            "texts_identical": not total["different"],
            "nobody_failed": not total["refused"] and not total["failed"],
        },
    }


def _memory(sizes: Sequence[int], plan: SoakPlan) -> dict[str, Any]:
    """Resident bytes of the verifier, in MB: medians of the first and the last third of what counts."""
    settled = np.asarray(sizes[round(SETTLED * len(sizes)) :]) / MEGABYTE
    third = max(1, len(settled) // 3)
    first, last = float(np.median(settled[:third])), float(np.median(settled[-third:]))
    minutes = plan.sample / 60.0 * np.arange(len(settled)) / plan.client_processes
    slope = float(np.polyfit(minutes, settled, 1)[0]) if len(settled) > 1 else 0.0
    return {
        "first_mb": rounded(first),
        "last_mb": rounded(last),
        "most_mb": rounded(float(settled.max())),
        "growth": rounded(last / first - 1.0),
        "mb_per_minute": rounded(slope),
    }


def _latencies(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over samples of what clients saw, ms."""
    return {
        f"{kind}_{percent}": _median([each["clients"][kind][percent] for each in samples])
        for kind in ("gap_ms", "ttft_ms")
        for percent in ("p50", "p95")
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return rounded(float(median(known))) if known else None


def _brief(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a plot needs of each."""
    first = samples[0]["clients"]["now"] if samples else 0.0
    return [
        {
            "at_s": rounded(each["clients"]["now"] - first),
            "memory_mb": rounded(each["verifier"]["memory_bytes"] / MEGABYTE),
            "objects": each["verifier"]["objects"],
            "sessions": each["verifier"]["sessions"],
            "free_slots": each["verifier"]["free_slots"],
            "cached_slots": each["verifier"]["cached_slots"],
            "tokens": each["clients"]["tokens"],
            "gap_ms_p50": each["clients"]["gap_ms"]["p50"],
            "gap_ms_p95": each["clients"]["gap_ms"]["p95"],
            "longest_wait_ms": each["clients"]["longest_wait_ms"],
        }
        for each in samples
    ]


def _in_words(sample: dict[str, Any]) -> str:
    verifier, clients = sample["verifier"], sample["clients"]
    return (
        f"{verifier['memory_bytes'] / MEGABYTE:.0f} MB, {verifier['sessions']} sessions, "
        f"{clients['tokens']} tokens, longest wait {clients['longest_wait_ms']:.0f} ms"
    )
