"""Tokens per second and latencies over the number of sessions: every scheme in turns, repeat by repeat."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import LocalError, UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from forerun.bench.figures import Figures, medians, ratio
from forerun.bench.formula import FORMULA, formula_text
from forerun.bench.job import LIVE, OFF, RECORDED, Drafts, Job
from forerun.bench.schemes import (
    CONTINUOUS,
    PADDED,
    SEQUENTIAL,
    STREAMING,
    Edges,
    Load,
    Rival,
    Scheme,
    Sequential,
    ask_rivals,
)
from forerun.bench.stage import Stage, StageSettings
from forerun.bench.texts import Text, prompts_of
from forerun.edge_places import try_draft
from forerun.rig import START_TIMEOUT, Child
from simulator.arrivals import Poisson, Window, read_arrivals
from simulator.knowledge import Candidates

WARM_TEXTS = 2
"""Written before anything is measured: kernels are chosen and caches allocated at the first step."""

Tell = Callable[[str], None]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    target: str
    draft: str
    sessions: tuple[int, ...]
    drafts: tuple[Drafts, ...]
    rivals: tuple[str, ...]  # keys of `schemes.RIVALS`
    rival_sessions: tuple[int, ...]  # at which of `sessions` they and the sequential run take part
    policy: str
    sampling: SamplingParams
    repeats: int
    rounds: int  # texts of each session, one after the other
    least_texts: int  # at each number of sessions
    sequential: int  # texts of the sequential run at most
    draft_time: float = 0.0
    rates: tuple[float, ...] = ()  # sessions per second of open loops; none = closed ones
    arrivals: Path | None = None  # a recording of sessions, instead of rates
    seed: int = 0
    step_floor_ms: float = 0.0
    client_processes: int = 1
    threads: int = 1
    device: str = "cpu"
    pin: bool = True
    recall: bool = False
    prefix_cache: bool = False
    verifier: str = ""  # further options of `forerun verify`

    def __post_init__(self) -> None:
        make_policy(self.policy)
        if not self.sessions or min(self.sessions) < 1:
            raise UserError(f"--sessions is {self.sessions}; numbers from 1 were expected")
        for name in ("repeats", "rounds", "least_texts", "sequential", "client_processes", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.sampling.max_tokens < 2:
            raise UserError(f"--max-tokens is {self.sampling.max_tokens}; a pace needs 2 tokens at least")
        if self.target == FORMULA and (self.rivals or {RECORDED, LIVE} & self._kinds):
            raise UserError("the formula is no model: transformers and a draft model cannot write its texts")

    @property
    def _kinds(self) -> set[str]:
        return {drafts.kind for drafts in self.drafts}

    @property
    def most_sessions(self) -> int:
        return max(self.sessions)

    @property
    def num_texts(self) -> int:
        return max(self.rounds * self.most_sessions, self.least_texts)

    @property
    def records(self) -> bool:
        return RECORDED in self._kinds


def stage_settings(plan: Plan, prompts: Sequence[Sequence[int]]) -> StageSettings:
    """A verifier with room for as many sessions as are asked for; an open loop may bring more."""
    most = plan.most_sessions
    slots = most * (max(map(len, prompts)) + plan.sampling.max_tokens + 32)
    given = ["--model", plan.target, "--slots", str(max(slots, 1024)), "--max-sessions", str(most)]
    given += ["--threads", str(plan.threads), "--device", plan.device]
    given += ["--step-floor", str(plan.step_floor_ms)] if plan.step_floor_ms else []
    given += ["--recall" if plan.recall else "--no-recall"]
    given += ["--prefix-cache" if plan.prefix_cache else "--no-prefix-cache"]
    return StageSettings((*given, *shlex.split(plan.verifier)), plan.client_processes, plan.pin)


async def measure(
    plan: Plan, tokens: Sequence[Sequence[int]], tell: Tell, progress: Progress
) -> dict[str, Any]:
    """The whole comparison; `tokens` are the prompts that the texts' are made of. Returns the report."""
    prompts = prompts_of(tokens, plan.num_texts)
    async with contextlib.AsyncExitStack() as stack:
        tell("starting the verifier and the clients")
        stage = await stack.enter_async_context(Stage(stage_settings(plan, prompts)))
        tell(f"the target writes {len(prompts)} texts alone, one after the other")
        texts = await references(plan, stage, prompts)
        said = await _recorded(plan, texts, tell) if plan.records else {}
        await stage.learn(texts, said, plan.draft)
        rivals = await _start_rivals(plan, stack, stage, texts, tell)
        points = await _measure_points(plan, stage, texts, rivals.children, progress)
    return {
        "points": points,
        "rival_setting": rivals.setting,
        "prompt_tokens": [len(each) for each in prompts],
    }


async def references(plan: Plan, stage: Stage, prompts: Sequence[Sequence[int]]) -> list[Text]:
    """Every text by one plain session after the other: what all others are held against."""
    texts = [Text(number, tuple(prompt)) for number, prompt in enumerate(prompts)]
    await stage.learn(texts)
    await stage.run(_plain(plan, stage, texts[:WARM_TEXTS]))
    if plan.target == FORMULA:
        return [text.written(formula_text(text.prompt, plan.sampling.max_tokens)) for text in texts]
    runs = (await stage.run(_plain(plan, stage, texts))).runs
    failed = next((run for run in runs if not run.finished), None)
    if failed is not None:
        raise LocalError(f"the target could not write text {failed.number} alone: {failed.error}")
    tokens = {run.number: run.tokens for run in runs}
    return [text.written(tokens[text.number]) for text in texts]


def _plain(plan: Plan, stage: Stage, texts: Sequence[Text]) -> Job:
    numbers = tuple(text.number for text in texts)
    return Job(stage.verifier.address, numbers, Drafts(OFF), OFF, plan.sampling, tell_tokens=True)


# Everybody in turns -----------------------------------------------------------------------------------------


async def _measure_points(
    plan: Plan, stage: Stage, texts: Sequence[Text], rivals: Sequence[Scheme], progress: Progress
) -> list[dict[str, Any]]:
    """At each number of sessions all schemes, forwards and backwards by turns, so that noise hits all
    alike."""
    points = []
    fields = [(at, load, _field(plan, rivals, load)) for at, load in loads(plan, texts)]
    total, done = plan.repeats * sum(len(field) for _, _, field in fields), itertools.count(1)
    for at, load, field in fields:
        found: dict[str, list[Figures]] = {scheme.name: [] for scheme in field}
        for repeat in range(plan.repeats):
            for scheme in field if repeat % 2 == 0 else reversed(field):
                found[scheme.name].append(await scheme.run(stage, load))
                progress(next(done), total, f"{_in_words(at)}, {scheme.name}")
        points.append({**at, **compared(found)})
    return points


def _field(plan: Plan, rivals: Sequence[Scheme], load: Load) -> list[Scheme]:
    """Who runs at this point."""
    edges: list[Scheme] = [Edges(each, plan.policy, plan.draft_time, plan.seed) for each in plan.drafts]
    beside = [Sequential(plan.sequential), *rivals] if load.clients in plan.rival_sessions else []
    return [scheme for scheme in (*edges, *beside) if scheme.suits(load)]


def loads(plan: Plan, texts: Sequence[Text]) -> list[tuple[dict[str, Any], Load]]:
    """Every point with what names it. Closed loops by numbers of sessions; open ones, whose users do not
    wait for each other, by rates of sessions or as they were recorded."""
    if plan.arrivals is not None:
        recorded = read_arrivals(plan.arrivals, Window())
        times = tuple(arrival.start for arrival in recorded.plan(plan.seed, 1, 1))
        return [({"arrivals": plan.arrivals.name}, _open_load(plan, texts, times))]
    if plan.rates:
        return [
            ({"sessions_per_second": rate}, _open_load(plan, texts, _drawn(plan, rate)))
            for rate in plan.rates
        ]
    return [
        (
            {"sessions": clients},
            Load(tuple(texts[: max(plan.rounds * clients, plan.least_texts)]), clients, plan.sampling),
        )
        for clients in plan.sessions
    ]


def _drawn(plan: Plan, rate: float) -> tuple[float, ...]:
    drawn = Poisson(rate, plan.num_texts).plan(plan.seed, 1, 1)
    return tuple(arrival.start for arrival in drawn)


def _open_load(plan: Plan, texts: Sequence[Text], times: tuple[float, ...]) -> Load:
    some = tuple(texts[place % len(texts)] for place in range(len(times)))
    return Load(some, min(plan.most_sessions, len(times)), plan.sampling, times)


def _in_words(at: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in at.items())


def compared(found: dict[str, list[Figures]]) -> dict[str, Any]:
    """Medians of each scheme, and how many times the tokens per second of the baselines each has."""
    result: dict[str, Any] = {"schemes": {name: medians(repeats) for name, repeats in found.items()}}
    for name, baseline in (
        ("times_sequential", SEQUENTIAL),
        ("times_streaming", STREAMING),
        ("times_transformers_continuous", CONTINUOUS),
        ("times_transformers_padded", PADDED),
    ):
        if baseline in found:
            result[name] = {
                scheme: ratio(repeats, found[baseline], "tokens_per_second")
                for scheme, repeats in found.items()
            }
    if STREAMING in found:
        result["streaming_steps_over_own"] = {
            scheme: ratio(found[STREAMING], repeats, "target_steps_per_token")
            for scheme, repeats in found.items()
        }
    return result


# Those beside us --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RivalField:
    """Transformers' ways that take part, and the setting that continuous batching runs with."""

    children: tuple[Rival, ...] = ()
    setting: dict[str, Any] | None = None


async def _start_rivals(
    plan: Plan, stack: contextlib.AsyncExitStack, stage: Stage, texts: Sequence[Text], tell: Tell
) -> RivalField:
    if not plan.rivals:
        return RivalField()
    tell("loading the target once more, for transformers")
    cores = stage.settings.cores
    pinned = ["--core", str(cores[1])] if cores else []
    child = await Child.start(
        "transformers process",
        *("--model", plan.target, "--threads", str(plan.threads), "--device", plan.device, *pinned),
        module="forerun.bench.rivals",
    )
    stack.push_async_callback(child.stop)
    await child.read(START_TIMEOUT)
    setting = None
    if "continuous" in plan.rivals:
        tell("trying settings of transformers' continuous batching")
        clients = max(plan.rival_sessions)
        setting = await ask_rivals(child, "tune", Load(tuple(texts[:clients]), clients, plan.sampling))
    return RivalField(tuple(Rival(child, kind) for kind in plan.rivals), setting)


async def _recorded(plan: Plan, texts: Sequence[Text], tell: Tell) -> dict[int, list[Candidates]]:
    """What the draft model says before every token of each text, which is what the device would hear of
    it."""
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings
    from forerun.record import said_before

    tell("the draft model reads the texts")
    said: dict[int, list[Candidates]] = {}
    settings = LlamaSettings(plan.draft, threads=1)
    try_draft(settings)
    with LlamaRuntime(settings) as runtime:
        drafter = LlamaDrafter(runtime)
        for text in texts:
            heard = said_before(drafter, text.prompt, text.reference, plan.sampling)
            said[text.number] = [
                (tuple(int(token) for token in each.tokens), tuple(float(score) for score in each.scores))
                for each in heard
            ]
            if not all(tokens for tokens, _ in said[text.number]):
                raise LocalError(f"the draft model had nothing to say within text {text.number}")
    return said
