"""`forerun simulate validate`: the real stack and the simulator in the same settings, side by side."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import demo_models
from common.errors import LocalError, UserError
from common.figures import pace
from common.sampling import SamplingParams
from forerun.paint import note
from forerun.prompts import bundled, some_of
from forerun.rig import Rig, RigSettings, check_models
from simulator.canvas import check_drawing
from simulator.documents import write_error, write_whole
from simulator.drafts import ReplayedDraft, recorded_draft
from simulator.link import LinkSpec
from simulator.plots import plot_validation
from simulator.recordings import RecordedText, read_recording
from simulator.schemes import run_scheme
from simulator.step_times import Line, fit_line
from simulator.world import DeviceSpec, VerifierSpec, World

REPORT, PLOT = "validation.json", "validation.png"
MEDIAN_PROMISED, WORST_PROMISED = 8.0, 20.0
"""Percent of ms per token by which predictions may be off."""

JITTER_REPEATS = 5
"""Simulated runs of a text over a link that jitters, each with delays of its own; their mean counts."""

DESCRIPTION = """\
Runs the real stack (both models, gRPC, the link proxy, the step floor) in two dozen settings, and the
simulator in the same ones. The simulator gets what the draft said (a recording) and how long steps of
either model took in those very runs; what it has to get right is the rest: what is drafted and sent when,
what each step commits, what waits for what. Takes about ten minutes. Ends with 1 if the median error
exceeds 8 % or the worst 20 %, or if a real text is not the recorded one: then the two are no comparison."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One comparison. Times in ms; `jitter_ms` as the link proxy takes it, of the round trip."""

    rtt_ms: float
    jitter_ms: float
    step_floor_ms: float
    policy: str
    temperature: float

    def __str__(self) -> str:
        jitter = f" ± {self.jitter_ms:g}" if self.jitter_ms else ""
        kind = f"T {self.temperature:g}" if self.temperature else "greedy"
        return f"RTT {self.rtt_ms:g}{jitter} ms, step {self.step_floor_ms:g} ms, {self.policy}, {kind}"


FLOORS = (15.0, 30.0, 60.0)
PLAN = (  # RTT, jitter, policy, temperature; each under every floor
    (0.0, 0.0, "adaptive", 0.0),
    (20.0, 10.0, "adaptive", 0.8),
    (60.0, 0.0, "off", 0.8),
    (60.0, 0.0, "chain", 0.8),
    (60.0, 0.0, "sync:8", 0.0),
    (60.0, 20.0, "adaptive", 0.0),
    (120.0, 40.0, "chain", 0.0),
    (200.0, 0.0, "adaptive", 0.8),
)
SETTINGS = tuple(
    Setting(rtt, jitter, floor, policy, temperature)
    for floor in FLOORS
    for rtt, jitter, policy, temperature in PLAN
)


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "validate",
        help="hold the simulator against real runs",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option(
        "--out", type=Path, required=True, metavar="FOLDER", help=f"gets {REPORT}, {PLOT} and the recordings"
    )
    option("--num-prompts", type=int, default=4, metavar="N", help="bundled prompts (%(default)s)")
    option("--max-tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option(
        "--seed", type=int, default=1, metavar="N", help="of sampling and of the link's jitter (%(default)s)"
    )
    option("--target", default=str(demo_models.TARGET_DIR), metavar="PATH", help="another target model")
    option("--draft", default=str(demo_models.DRAFT_GGUF), metavar="PATH", help="another draft model (GGUF)")
    option("--json", action="store_true", help="print the report instead of a table")
    parser.set_defaults(run=lambda options: asyncio.run(_validate(options)))


async def _validate(options: argparse.Namespace) -> int:
    check_models(Path(options.target), Path(options.draft))
    prompts = some_of(bundled(), options.num_prompts)
    if options.max_tokens < 2:
        raise UserError(f"--max-tokens is {options.max_tokens}; a pace needs 2 tokens at least")
    check_drawing()  # at the end ten minutes would be spent
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {options.out} cannot be made: {error.strerror}") from error
    temperatures = sorted({setting.temperature for setting in SETTINGS})
    drafts = {each: await _record(options, prompts, each) for each in temperatures}
    rows = [row async for row in _measure_all(options, prompts, drafts)]
    report = _report(options, rows)
    try:
        _write(report, options.out)
    finally:  # ten minutes are not lost to a full disk
        print(json.dumps(report, indent=2) if options.json else "\n".join(_table(report)))
    return 0 if _is_kept(report) else 1


# Real runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the draft said along the target's texts."""

    draft: ReplayedDraft
    texts: tuple[RecordedText, ...]


async def _record(options: argparse.Namespace, prompts: Sequence[str], temperature: float) -> Recorded:
    """In a process of its own, which takes the models along when it ends."""
    note(f"recording what the draft says at temperature {temperature:g}")
    path = options.out / f"recording_{temperature:g}.jsonl"
    given = [part for prompt in prompts for part in ("--prompt", prompt)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun", "record", "--out", str(path), "--target", options.target,
        "--draft", options.draft, "--temperature", str(temperature), "--seed", str(options.seed),
        "--max-tokens", str(options.max_tokens), "--ignore-eos", "--threads", "1", *given,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if await process.wait():
        raise LocalError("the recording failed; its message stands above")
    recording = read_recording(path)
    return Recorded(recorded_draft(path.name, recording), recording.texts)


async def _measure_all(
    options: argparse.Namespace, prompts: Sequence[str], drafts: Mapping[float, Recorded]
) -> AsyncIterator[dict[str, Any]]:
    """A row for each setting, floor by floor: the floor is the verifier's, which is then started anew."""
    done = 0
    for floor in FLOORS:
        rig_settings = RigSettings(options.target, options.draft, step_floor_ms=floor, link_seed=options.seed)
        async with Rig(rig_settings) as rig:
            note(f"step floor {floor:g} ms: how long messages take on this machine")
            own_rtt = await _own_rtt(rig, prompts, options)
            for setting in (each for each in SETTINGS if each.step_floor_ms == floor):
                done += 1
                note(f"{done} of {len(SETTINGS)}: {setting}")
                rig.link.rtt(setting.rtt_ms, jitter=setting.jitter_ms)
                sampling = _sampling(options, setting.temperature)
                runs = [await rig.complete(prompt, setting.policy, sampling) for prompt in prompts]
                yield compare(setting, runs, drafts[setting.temperature], own_rtt)


async def _own_rtt(rig: Rig, prompts: Sequence[str], options: argparse.Namespace) -> float:
    """Seconds that a round trip takes over a link without delay: processes, threads, gRPC and the proxy."""
    rig.link.rtt(0.0)
    sampling = _sampling(options, 0.0)
    await rig.complete(prompts[0], "chain", sampling)  # connections and caches are warm now
    found = [(await rig.complete(prompt, "chain", sampling))["smoothed_rtt_ms"] for prompt in prompts]
    return float(median(found)) / 1e3


def _sampling(options: argparse.Namespace, temperature: float) -> dict[str, Any]:
    return asdict(
        SamplingParams(
            temperature=temperature, max_tokens=options.max_tokens, seed=options.seed, ignore_eos=True
        )
    )


# Simulated runs -------------------------------------------------------------------------------------------


def compare(
    setting: Setting, runs: Sequence[dict[str, Any]], recorded: Recorded, own_rtt: float
) -> dict[str, Any]:
    """The row of one setting. `runs` are `done` events of the recording's first texts, in order."""
    draft_step, target_step = _line(runs, "draft_times"), _line(runs, "target_times")
    world = World(
        link=_link(setting, own_rtt),
        device=DeviceSpec(*draft_step),
        verifier=VerifierSpec(*target_step).with_product_limits(),
        draft=recorded.draft,
    )
    simulated = list(_simulate(world, setting, recorded.texts[: len(runs)], len(recorded.texts)))
    measured, predicted = pace(runs), pace(simulated)
    texts = [list(text.tokens) for text in recorded.texts]
    return {
        "setting": str(setting),
        **asdict(setting),
        "measured_ms_per_token": round(measured, 3),
        "predicted_ms_per_token": round(predicted, 3),
        "error_percent": round(100 * (predicted / measured - 1), 2),
        "measured_target_steps": round(fmean(run["stats"]["target_steps"] for run in runs), 2),
        "predicted_target_steps": round(fmean(run["stats"]["target_steps"] for run in simulated), 2),
        "own_rtt_ms": round(own_rtt * 1e3, 2),
        "draft_ms": round(draft_step.fixed * 1e3, 3),
        "draft_ms_per_node": round(draft_step.per_row * 1e3, 3),
        "step_ms": round(target_step.fixed * 1e3, 3),
        "step_ms_per_node": round(target_step.per_row * 1e3, 3),
        "identical": all(run["tokens"] == text for run, text in zip(runs, texts, strict=False)),
    }


def _line(runs: Iterable[dict[str, Any]], times: str) -> Line:
    """Of all steps of one kind; nothing where there were none (the draft of `off`)."""
    groups = [
        (int(rows), count, run[times]["totals"][rows])
        for run in runs
        for rows, count in run[times]["counts"].items()
    ]
    return fit_line(groups) if groups else Line(0.0, 0.0)


def _link(setting: Setting, own_rtt: float) -> LinkSpec:
    """The proxy's jitter is uniform: half of it each way, up or down. Its deviation is that over root 3."""
    return LinkSpec(
        rtt=setting.rtt_ms / 1e3 + own_rtt,
        jitter=setting.jitter_ms / 2e3 / 3**0.5,
        jitter_law="uniform",
    )


def _simulate(
    world: World, setting: Setting, texts: Sequence[RecordedText], num_texts: int
) -> Iterator[dict[str, Any]]:
    """Runs as `common.figures` reads them. A seed stands for a text and for delays: those of one text differ
    by `num_texts`."""
    scheme = "server_streaming" if setting.policy == "off" else setting.policy
    for repeat in range(JITTER_REPEATS if setting.jitter_ms else 1):
        for place, text in enumerate(texts):
            own = _with(world, text, 1 + place + repeat * num_texts)
            (result,) = run_scheme(scheme, own)
            yield result.as_run()


def _with(world: World, text: RecordedText, seed: int) -> World:
    return replace(world, tokens=len(text.tokens), prompt_tokens=text.prompt_tokens, seed=seed)


# The report -----------------------------------------------------------------------------------------------


def _report(options: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [abs(row["error_percent"]) for row in rows]
    return {
        "settings": {key: getattr(options, key) for key in ("num_prompts", "max_tokens", "seed")},
        "median_error_percent": round(median(errors), 2),
        "worst_error_percent": round(max(errors), 2),
        "results": rows,
    }


def _write(report: dict[str, Any], folder: Path) -> None:
    try:
        write_whole(folder / REPORT, json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise write_error(f"the report cannot be written to {folder}", error) from error
    plot_validation(report["results"], folder / PLOT)


def _is_kept(report: dict[str, Any]) -> bool:
    """Whether the simulator does what it promises, on the texts that it was told of."""
    return bool(
        report["median_error_percent"] <= MEDIAN_PROMISED
        and report["worst_error_percent"] <= WORST_PROMISED
        and all(row["identical"] for row in report["results"])
    )


def _table(report: dict[str, Any]) -> Iterator[str]:
    yield f"{'setting':48}{'measured':>10}{'predicted':>11}{'error':>9}{'steps':>8}{'predicted':>11}"
    for row in report["results"]:
        setting = row["setting"] if row["identical"] else f"{row['setting']} *"
        yield (
            f"{setting:48}{row['measured_ms_per_token']:>10.2f}{row['predicted_ms_per_token']:>11.2f}"
            f"{row['error_percent']:>+8.1f}%{row['measured_target_steps']:>8.1f}"
            f"{row['predicted_target_steps']:>11.1f}"
        )
    median_error, worst = report["median_error_percent"], report["worst_error_percent"]
    yield f"ms per token; steps are the target's per text. Error: median {median_error} %, worst {worst} %"
    if not all(row["identical"] for row in report["results"]):
        yield "* the real text is not the recorded one, so the simulator was told of another text"
