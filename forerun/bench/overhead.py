"""What scheduler, codec and gRPC add to a step: a target that answers at once, behind a floor on its
steps."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common.errors import LocalError, UserError
from common.figures import rounded
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from forerun.bench.formula import FORMULA, formula_text
from forerun.bench.job import LIVE, RECORDED, Drafts, Job
from forerun.bench.meter import PARTS
from forerun.bench.stage import Stage, StageSettings
from forerun.bench.texts import Text, prompts_of
from forerun.bench.tokens import prompt_tokens

MAX_TOKENS = 256
"""Of a text, so that a session is opened seldom beside steps."""

LEAST_STEPS = 10
"""In a sample that counts."""


@dataclass(frozen=True, slots=True)
class OverheadPlan:
    """One measurement."""

    sessions: int = 64
    step_ms: float = 8.0
    seconds: float = 10.0
    sample: float = 1.0  # seconds; the first one and the last one do not count: sessions begin and end
    drafts: tuple[Drafts, ...] = (Drafts("off"),)
    policy: str = "adaptive"
    draft_time: float = 0.0  # seconds
    seed: int = 1
    client_processes: int = 1
    pin: bool = True
    verifier: str = ""
    profile: Path | None = None

    def __post_init__(self) -> None:
        make_policy(self.policy)
        for name in ("sessions", "step_ms", "seconds", "sample", "client_processes"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.seconds < 3 * self.sample:
            raise UserError(f"{self.seconds:g} seconds are no three samples of {self.sample:g}; ask for more")
        if {RECORDED, LIVE} & {drafts.kind for drafts in self.drafts}:
            raise UserError("the formula's texts are no model's: their drafts are `off` or an oracle's")

    @property
    def stage(self) -> StageSettings:
        slots = self.sessions * 2 * MAX_TOKENS
        given = ["--model", FORMULA, "--slots", str(slots), "--max-sessions", str(self.sessions)]
        given += ["--step-floor", str(self.step_ms), "--no-recall", "--no-prefix-cache"]
        given += ["--profile", str(self.profile)] if self.profile else []
        return StageSettings((*given, *shlex.split(self.verifier)), self.client_processes, self.pin)


async def measure(plan: OverheadPlan, progress: Callable[[int, int, str], None]) -> dict[str, Any]:
    """Every kind of drafts, one after the other, on one verifier."""
    prompts = prompts_of(prompt_tokens(FORMULA, ()), min(plan.sessions, 256))
    texts = [Text(number, prompt, formula_text(prompt, MAX_TOKENS)) for number, prompt in enumerate(prompts)]
    found = {}
    async with Stage(plan.stage) as stage:
        await stage.learn(texts)
        for place, drafts in enumerate(plan.drafts):
            progress(place, len(plan.drafts), f"{plan.sessions} sessions, drafts: {drafts}")
            found[str(drafts)] = await _measure(plan, stage, texts, drafts)
    return found


async def _measure(plan: OverheadPlan, stage: Stage, texts: Sequence[Text], drafts: Drafts) -> dict[str, Any]:
    samples = list[dict[str, Any]]()

    async def sample(told: dict[str, Any]) -> None:
        samples.append({"clients": told, "verifier": await stage.verifier.take()})

    job = Job(
        address=stage.verifier.address,
        numbers=tuple(text.number for text in texts),
        drafts=drafts,
        policy=plan.policy,
        sampling=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
        clients=plan.sessions,
        duration=plan.seconds,
        draft_time=plan.draft_time,
        seed=plan.seed,
        sample=plan.sample,
    )
    outcome = await stage.run(job, sample)
    usual = samples[1 : int(plan.seconds / plan.sample) * plan.client_processes]
    kept = [each for each in usual if each["verifier"]["steps"] >= LEAST_STEPS]
    if not kept:
        raise LocalError("no sample has steps enough; ask for longer ones, or for fewer sessions")
    finished = [run for run in outcome.runs if run.finished]
    return {
        **overhead(plan.step_ms, [each["verifier"] for each in kept]),
        "tokens_per_second": rounded(median(each["clients"]["tokens"] for each in kept) / plan.sample),
        "client_cpu": rounded(max(outcome.client_cpu)),
        "samples": len(kept),
        "texts": len(finished),
        "texts_different": sum(run.difference is not None for run in finished),
        "failed": sum(not run.finished for run in outcome.runs),
    }


def overhead(step_ms: float, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over samples of `Meter.take`, of steps that follow each other without a rest.

    A cycle is the time from a step's start to the next one's. What of it exceeds `step_ms`, as a share of
    `step_ms`, is the overhead; of that, `gap_ms` lies between two calls of the engine. The calls of the
    scheduler in the gap are `next_step` and `on_step_done`, unless the engine went on with a step that was
    planned ahead.
    """
    cycle = median(each["cycle_ms"]["mean"] for each in samples)
    per_step = [{name: each["scheduler_ms"][name] / each["steps"] for name in PARTS} for each in samples]
    outside = [(each["cpu_ms"] - each["engine_cpu_ms"]) / each["steps"] for each in samples]
    return {
        "overhead_share": rounded(cycle / step_ms - 1.0),
        "cycle_ms": rounded(cycle),
        "cycle_ms_p95": rounded(median(each["cycle_ms"]["p95"] for each in samples)),
        "gap_ms": rounded(median(each["gap_ms"]["mean"] for each in samples)),
        "gap_ms_p50": rounded(median(each["gap_ms"]["p50"] for each in samples)),
        "scheduler_ms": {name: rounded(median(one[name] for one in per_step)) for name in PARTS},
        "outside_cpu_ms": rounded(median(outside)),
        "rows_per_step": rounded(median(each["rows"] / each["steps"] for each in samples)),
        "steps": sum(each["steps"] for each in samples),
    }
