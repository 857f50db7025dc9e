"""Measures tokens per second and latencies over the number of sessions: `python -m lab bench capacity`.

The schemes take turns, repeat by repeat.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import LocalError, UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from forerun import terminal
from forerun.terminal import note
from lab.bench.figures import Figures, load_figures, medians, ratio
from lab.bench.formula import FORMULA, formula_text
from lab.bench.load import (
    OFF,
    RECORDED,
    SEQUENTIAL,
    STREAMING,
    DraftOption,
    LoadJob,
    LoadText,
    prompt_tokens,
    prompts_of,
)
from lab.bench.report import SCHEMA, Machine, ReportOptions, finish, progress_bar, settings_of
from lab.bench.stage import Stage
from lab.rig import check_models
from simulator.knowledge import Candidates
from training import demo_pair
from training.options import ms, open_draft, read_prompts
from training.prompts import bundled

WARM_TEXTS = 2
"""Warm-up texts: the first step chooses kernels and allocates caches."""

Progress = Callable[[int, int, str], None]


DRAFTS, TEXTS, LOAD = "the schemes", "the texts", "the load"


@dataclass(frozen=True, kw_only=True)
class Plan(ReportOptions):
    """Declares what is measured. Raises `UserError`."""

    drafts: tuple[DraftOption, ...] = setting(
        tuple(map(DraftOption.parse, ("off", "oracle=0.6", "oracle=0.8", "recorded"))),
        "drafts to compare: off, oracle=ACCEPTANCE or recorded (default: off oracle=0.6 oracle=0.8 recorded)",
        "KIND",
        read=DraftOption.parse,
        nargs="+",
        group=DRAFTS,
    )
    policy: str = setting("adaptive", "growth policy of Forerun", group=DRAFTS)
    draft: str = setting(str(demo_pair.DRAFT_GGUF), "GGUF file for recorded drafts", "PATH", group=DRAFTS)
    draft_ms: float = setting(  # seconds
        5.0 / 1e3,
        "time of a draft step, for oracle and recorded drafts (default: 5)",
        "MS",
        read=ms,
        group=DRAFTS,
    )
    sequential: int = setting(32, "most texts of the sequential run", "N", low=1, group=DRAFTS)
    prompts: Path | None = setting(None, "JSON list or JSON lines (default: bundled)", "FILE", group=TEXTS)
    max_tokens: int = setting(64, "number of tokens of each text", "N", low=2, group=TEXTS)
    rounds: int = setting(2, "number of texts of each session", "N", low=1, group=TEXTS)
    texts: int = setting(8, "fewest texts at each point", "N", low=1, group=TEXTS)
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy", "T", group=TEXTS)
    seed: int = setting(1, "seed of sampling and oracles", group=TEXTS)
    sessions: tuple[int, ...] = setting((1, 8, 32), "concurrent sessions", "N", low=1, nargs="+", group=LOAD)
    repeats: int = setting(3, "number of repeats; the median counts", "N", low=1, group=LOAD)
    target: str = setting(str(demo_pair.TARGET_DIR), f"folder, hub id or `{FORMULA}` (no model)", "PATH")
    device: str = setting("cpu", "device of the target: cpu or cuda")
    threads: int = setting(1, "threads of torch in the verifier", "N", low=1)
    verifier: str = setting("", "options of `forerun verify`, as one argument: '--max-rows 512'", "OPTIONS")
    pin: bool = setting(True, "pin verifier and clients to a core each (Linux only)")
    step_floor: float = setting(0.0, "least time of a target step", "MS")
    recall: bool = setting(False, "let the verifier propose repeated tokens, also for `off`")
    prefix_cache: bool = setting(False, "let the verifier keep prompts for later schemes")

    def __post_init__(self) -> None:
        super().__post_init__()
        make_policy(self.policy)
        if self.target == FORMULA and self.records:
            raise UserError("no draft model writes the formula's texts; omit recorded from --drafts")

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, max_tokens=self.max_tokens, seed=self.seed, ignore_eos=True)

    @property
    def points(self) -> list[int]:
        """Return the numbers of sessions, each once."""
        return sorted(set(self.sessions))

    @property
    def num_texts(self) -> int:
        return max(self.rounds * max(self.sessions), self.texts)

    @property
    def records(self) -> bool:
        return any(drafts.kind == RECORDED for drafts in self.drafts)

    def stage(self, prompts: Sequence[Sequence[int]]) -> Stage:
        """Return a stage whose verifier admits the most sessions of a point."""
        most = max(self.sessions)
        slots = most * (max(map(len, prompts)) + self.sampling.max_tokens + 32)
        given = ["--model", self.target, "--slots", str(max(slots, 1024)), "--max-sessions", str(most)]
        given += ["--threads", str(self.threads), "--device", self.device]
        given += ["--step-floor", str(self.step_floor)] if self.step_floor else []
        given += ["--recall" if self.recall else "--no-recall"]
        given += ["--prefix-cache" if self.prefix_cache else "--no-prefix-cache"]
        return Stage([*given, *shlex.split(self.verifier)], pin=self.pin)


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """Holds the load of every scheme at one point: texts and number of clients."""

    texts: tuple[LoadText, ...]
    clients: int


@dataclass(frozen=True, slots=True)
class Scheme:
    """Runs Forerun with drafts of one kind, or plain streaming."""

    name: str
    drafts: DraftOption
    policy: str = OFF
    most_texts: int = 0  # most texts, by one client in sequence; 0 = all texts by all clients

    async def run(self, plan: Plan, stage: Stage, load: OfferedLoad) -> Figures:
        job = LoadJob(
            address=stage.address,
            numbers=tuple(text.number for text in load.texts)[: self.most_texts or None],
            drafts=self.drafts,
            policy=self.policy,
            sampling=plan.sampling,
            clients=1 if self.most_texts else load.clients,
            draft_time=plan.draft_ms,
            seed=plan.seed,
        )
        return load_figures(await stage.run(job), job.clients)


async def measure(plan: Plan, tokens: Sequence[Sequence[int]], progress: Progress) -> dict[str, Any]:
    """Run the whole comparison on prompts made from `tokens`. Return the report."""
    prompts = prompts_of(tokens, plan.num_texts)
    note("starting the verifier and the clients")
    async with plan.stage(prompts) as stage:
        note(f"the target writes {len(prompts)} texts alone, one after the other")
        texts = await references(plan, stage, prompts)
        await stage.learn(texts, _recorded(plan, texts) if plan.records else {})
        points = await _measure_points(plan, stage, texts, progress)
    return {"points": points, "prompt_tokens": [len(each) for each in prompts]}


async def references(plan: Plan, stage: Stage, prompts: Sequence[Sequence[int]]) -> list[LoadText]:
    """Write every text by plain sessions in sequence, as the reference for all schemes."""
    texts = [LoadText(number, tuple(prompt)) for number, prompt in enumerate(prompts)]
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


def _plain(plan: Plan, stage: Stage, texts: Sequence[LoadText]) -> LoadJob:
    numbers = tuple(text.number for text in texts)
    return LoadJob(stage.address, numbers, DraftOption(OFF), OFF, plan.sampling, tell_tokens=True)


def _recorded(plan: Plan, texts: Sequence[LoadText]) -> dict[int, list[Candidates]]:
    """Return the draft model's candidates before every token of each text."""
    from common.llama.model import LlamaSettings
    from edge_client.draft.group import DraftGroup, MemberDrafter
    from training.record import said_before

    note("the draft model reads the texts")
    said: dict[int, list[Candidates]] = {}
    with open_draft(LlamaSettings(plan.draft, threads=1)) as runtime:
        drafter = MemberDrafter(DraftGroup(runtime, 1))
        for text in texts:
            heard = said_before(drafter, text.prompt, text.reference, plan.sampling)
            said[text.number] = [
                (tuple(map(int, each.tokens)), tuple(map(float, each.scores))) for each in heard
            ]
            if not all(tokens for tokens, _ in said[text.number]):
                raise LocalError(f"the draft model gave no candidates in text {text.number}")
    return said


# Every scheme in turns --------------------------------------------------------------------------------------


async def _measure_points(
    plan: Plan, stage: Stage, texts: Sequence[LoadText], progress: Progress
) -> list[dict[str, Any]]:
    """Run all schemes at each point, in alternating order, so that noise affects all alike."""
    points, every, in_turn = [], loads(plan, texts), schemes(plan)
    total, done = plan.repeats * len(every) * len(in_turn), itertools.count(1)
    for load in every:
        runs: dict[str, list[Figures]] = {scheme.name: [] for scheme in in_turn}
        for repeat in range(plan.repeats):
            for scheme in in_turn if repeat % 2 == 0 else reversed(in_turn):
                runs[scheme.name].append(await scheme.run(plan, stage, load))
                progress(next(done), total, f"{load.clients} sessions, {scheme.name}")
        points.append({"sessions": load.clients, **compared(runs)})
    return points


def schemes(plan: Plan) -> list[Scheme]:
    """Return the schemes that are compared; the last one writes a few texts in sequence."""
    compared = [
        Scheme(STREAMING, drafts)
        if drafts.kind == OFF
        else Scheme(str(drafts).replace("=", " "), drafts, plan.policy)
        for drafts in dict.fromkeys(plan.drafts)
    ]
    return [*compared, Scheme(SEQUENTIAL, DraftOption(OFF), most_texts=plan.sequential)]


def loads(plan: Plan, texts: Sequence[LoadText]) -> list[OfferedLoad]:
    """Return the load of each point: each client writes its texts one after the other."""
    return [
        OfferedLoad(tuple(texts[: max(plan.rounds * clients, plan.texts)]), clients)
        for clients in plan.points
    ]


def compared(runs: dict[str, list[Figures]]) -> dict[str, Any]:
    """Return the medians of each scheme, and the ratios of tokens per second to the baselines."""
    result: dict[str, Any] = {"schemes": {name: medians(repeats) for name, repeats in runs.items()}}
    for name, baseline in (("times_sequential", SEQUENTIAL), ("times_streaming", STREAMING)):
        if baseline in runs:
            result[name] = {
                scheme: ratio(repeats, runs[baseline], "tokens_per_second")
                for scheme, repeats in runs.items()
            }
    if STREAMING in runs:
        result["streaming_steps_over_own"] = {
            scheme: ratio(runs[STREAMING], repeats, "target_steps_per_token")
            for scheme, repeats in runs.items()
        }
    return result


# The command ------------------------------------------------------------------------------------------------


DESCRIPTION = """\
Load a verifier with N sessions at a time, and compare three schemes: plain streaming of the same engine,
Forerun with drafts of an oracle or of the real draft model, and one session after the other. The schemes take
turns. Every text is compared with the target's own. With `--target formula` and --step-floor the engine costs
nothing: the time beyond the floor (`outside`) is the verifier's own scheduler, codec and gRPC.

  python -m lab bench capacity --sessions 1 8 32 --drafts off oracle=0.6 recorded

Exit code 1 if one of Forerun's texts differs. Rounding in float32 depends on the other
sessions in a step, so two tokens whose scores agree to six digits may swap."""


BENCH = """\
Load a verifier on this machine and measure it. The verifier is a process on one core, many clients run on
another, and gRPC connects them over the loopback interface. lab/docs/capacity.md explains the figures."""


def add_parser(commands: Any) -> None:
    """Add `bench` and its parts."""
    words = "load a verifier and measure it"
    parser = add_command(commands, "bench", words, description=BENCH)
    actions = parser.add_subparsers(dest="action", required=True, metavar="PART")
    add_command(actions, "capacity", "tokens per second by number of sessions", run, Plan, DESCRIPTION)


def run(plan: Plan) -> int:
    if plan.target == str(demo_pair.TARGET_DIR):
        check_models(Path(plan.target), Path(plan.draft))
    machine = Machine()
    texts = bundled() if plan.prompts is None else read_prompts(plan.prompts)
    with progress_bar("runs") as progress:
        measured = asyncio.run(measure(plan, prompt_tokens(plan.target, texts), progress))
    counts = text_counts(measured["points"])
    report = {
        "schema": SCHEMA,
        "benchmark": "capacity",
        "settings": settings_of(plan),
        "machine": machine.told(),
        **measured,
        "texts": counts,
    }
    finish(plan, report, table(report))
    return 0 if counts["compared"] and not counts["different"] and not counts["failed"] else 1


def text_counts(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count the texts that were compared with the target's own, that differ, and that failed."""
    own = [figures for point in points for figures in point["schemes"].values()]
    return {
        "compared": sum(figures["texts_compared"] for figures in own),
        "different": sum(figures["texts_different"] for figures in own),
        "failed": sum(figures["failed"] for figures in own),
    }


# The table -------------------------------------------------------------------------------------------------

COLUMNS = (
    ("tokens/s", "tokens_per_second", 1),
    ("ms/token", "ms_per_token", 1),
    ("p95", "ms_per_token_p95", 1),
    ("ttft p50", "ttft_ms_p50", 0),
    ("p95", "ttft_ms_p95", 0),
    ("steps/token", "target_steps_per_token", 3),
    ("rows/token", "evaluated_nodes_per_token", 2),
    ("step ms", "step_ms", 1),
    ("outside", "gap_share", 3),
    ("clients", "client_cpu", 2),
)
"""Heading, figure, digits."""

RATIOS = {"times_sequential": "x sequential", "times_streaming": "x streaming"}


def table(report: dict[str, Any]) -> list[str]:
    """Format the report: a table for each point, a line for each scheme."""
    lines = list[str]()
    for point in report["points"]:
        at = f"sessions {point['sessions']}"
        ratios = [name for name in RATIOS if name in point]
        titles = (at, *(head for head, _, _ in COLUMNS), *(RATIOS[name] for name in ratios), "texts")
        rows = (
            [
                name,
                *(_cell(figures.get(key), digits) for _, key, digits in COLUMNS),
                *(_cell(point[ratio].get(name), 2) for ratio in ratios),
                _texts(figures),
            ]
            for name, figures in point["schemes"].items()
        )
        lines += ["", *terminal.table(titles, rows, left=(at, "texts"))]
    compared, different = report["texts"]["compared"], report["texts"]["different"]
    words = f"{compared} texts were compared with what the target writes alone; {different} differ."
    return [*lines, "", words]


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _texts(figures: dict[str, Any]) -> str:
    words = f"{figures['texts']:g} written"
    for key, word in (("texts_different", "differ"), ("refused", "refused"), ("failed", "failed")):
        words += f", {figures[key]:g} {word}" if figures.get(key) else ""
    return words
