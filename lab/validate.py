"""Implements `python -m lab validate`: compares the real stack and the simulator in the same settings."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import LocalError, UserError
from common.sampling import SamplingParams
from edge_client.formats.detokenizer import spelled
from forerun import demo_pair
from forerun.options import write_out
from forerun.prompts import bundled, some_of
from forerun.rig import Rig, RigSettings, check_models, words_of
from forerun.terminal import note, table
from simulator.drafts import ReplayedDraft, recorded_draft
from simulator.figures import pace
from simulator.link_spec import LinkSpec
from simulator.recordings import RecordedText, read_recording
from simulator.schemes import run_scheme
from simulator.world import DeviceSpec, StepTimeLine, VerifierSpec, World, fit_line

REPORT = "validation.json"
MEDIAN_PROMISED, WORST_PROMISED = 8.0, 20.0
"""Allowed error of predictions, in percent of ms per token."""

JITTER_REPEATS = 5
"""Simulated runs of a text over a jittering link, each with its own delays; their mean counts."""

DESCRIPTION = """\
Run the real stack (both models, gRPC, the link proxy, the step floor) and the simulator in the same two dozen
settings. The simulator gets a recording of the draft and the measured step times of both models. It must
predict the rest: what is drafted and sent when, what each step commits, and what waits. The run takes about
ten minutes. Exit code 1 if the median error exceeds 8 % or the worst 20 %, or if a real text is not the
recorded one."""


@dataclass(frozen=True, slots=True)
class ValidationSetting:
    """Names one comparison. Times are in ms; `jitter_ms` is the link proxy's, of the round trip."""

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
    ValidationSetting(rtt, jitter, floor, policy, temperature)
    for floor in FLOORS
    for rtt, jitter, policy, temperature in PLAN
)


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """Declares what is run. Raises `UserError`."""

    out: Path = setting(REQUIRED, f"folder for {REPORT} and the recordings", "FOLDER")
    num_prompts: int = setting(4, "number of bundled prompts", "N")
    max_tokens: int = setting(96, "number of tokens of each text", "N", low=2)
    seed: int = setting(1, "seed of sampling and of the link's jitter", "N")
    target: str = setting(str(demo_pair.TARGET_DIR), "folder of the target model", "PATH")
    draft: str = setting(str(demo_pair.DRAFT_GGUF), "GGUF file of the draft model", "PATH")
    json: bool = setting(False, "print the report instead of a table")

    def sampling(self, temperature: float) -> dict[str, Any]:
        """Return the sampling parameters of a request."""
        return asdict(
            SamplingParams(temperature, max_tokens=self.max_tokens, seed=self.seed, ignore_eos=True)
        )


def add_parser(actions: Any) -> None:
    words = "compare the simulator with real runs"
    add_command(actions, "validate", words, _run, ValidateOptions, DESCRIPTION)


def _run(options: ValidateOptions) -> int:
    check_models(Path(options.target), Path(options.draft))
    prompts = some_of(bundled(), options.num_prompts)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {options.out} cannot be made: {error.strerror}; name another") from error
    report = _report(options, asyncio.run(_measure(options, prompts)))
    try:
        write_out("the report", options.out / REPORT, json.dumps(report, indent=2) + "\n")
    finally:  # ten minutes are not lost to a full disk
        print(json.dumps(report, indent=2) if options.json else "\n".join(_table(report)))
    return 0 if _is_kept(report) else 1


async def _measure(options: ValidateOptions, prompts: Sequence[str]) -> list[dict[str, Any]]:
    temperatures = sorted({setting.temperature for setting in SETTINGS})
    drafts = {each: await _record(options, prompts, each) for each in temperatures}
    return [row async for row in _measure_all(options, prompts, drafts)]


@dataclass(frozen=True, slots=True)
class RecordedSetting:
    """Holds the draft's candidates along the target's texts."""

    draft: ReplayedDraft
    texts: tuple[RecordedText, ...]
    spelled: tuple[str, ...]  # the texts in characters


async def _record(options: ValidateOptions, prompts: Sequence[str], temperature: float) -> RecordedSetting:
    """Record in a separate process, whose end frees the models' memory."""
    note(f"recording the draft at temperature {temperature:g}")
    path = options.out / f"recording_{temperature:g}.jsonl"
    given = [part for prompt in prompts for part in ("--prompt", prompt)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forerun", "record", "--out", str(path), "--target", options.target,
        "--draft", options.draft, "--temperature", str(temperature), "--seed", str(options.seed),
        "--max-tokens", str(options.max_tokens), "--ignore-eos", "--threads", "1", *given,
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if await process.wait():
        raise LocalError("the recording failed; see its message above")
    recording = read_recording(path)
    with words_of(options.draft) as words:
        texts = tuple(spelled(words, text.tokens) for text in recording.texts)
    return RecordedSetting(recorded_draft(path.name, recording), recording.texts, texts)


async def _measure_all(
    options: ValidateOptions, prompts: Sequence[str], drafts: Mapping[float, RecordedSetting]
) -> AsyncIterator[dict[str, Any]]:
    """Yield a row for each setting, floor by floor, as a new floor needs a new verifier."""
    done = 0
    for floor in FLOORS:
        rig_settings = RigSettings(options.target, options.draft, step_floor_ms=floor, link_seed=options.seed)
        async with Rig(rig_settings) as rig:
            note(f"step floor {floor:g} ms: measuring how long messages take on this machine")
            own_rtt = await _own_rtt(rig, prompts, options)
            for setting in (each for each in SETTINGS if each.step_floor_ms == floor):
                done += 1
                note(f"{done} of {len(SETTINGS)}: {setting}")
                rig.link.rtt(setting.rtt_ms, jitter=setting.jitter_ms)
                sampling = options.sampling(setting.temperature)
                runs = [await rig.complete(prompt, setting.policy, sampling) for prompt in prompts]
                yield compare(setting, runs, drafts[setting.temperature], own_rtt)


async def _own_rtt(rig: Rig, prompts: Sequence[str], options: ValidateOptions) -> float:
    """Return the seconds of a round trip over a link without delay: processes, gRPC and the proxy."""
    rig.link.rtt(0.0)
    sampling = options.sampling(0.0)
    await rig.complete(prompts[0], "chain", sampling)  # connections and caches are warm now
    rtts = [(await rig.complete(prompt, "chain", sampling))["rtt_ms"] for prompt in prompts]
    return float(median(rtts)) / 1e3


def compare(
    setting: ValidationSetting, runs: Sequence[dict[str, Any]], recorded: RecordedSetting, own_rtt: float
) -> dict[str, Any]:
    """Return the row of one setting. `runs` are `done` events of the recording's first texts, in order."""
    draft_step = _line(runs, "drafted", "draft_steps", "draft_time")
    target_step = _line(runs, "evaluated", "target_steps", "compute_time")
    world = World(
        link=_link(setting, own_rtt),
        device=DeviceSpec(*draft_step),
        verifier=VerifierSpec(*target_step).with_product_limits(),
        draft=recorded.draft,
    )
    simulated = list(_simulate(world, setting, recorded.texts[: len(runs)], len(recorded.texts)))
    measured, predicted = pace(runs), pace(simulated)
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
        "identical": all(run["text"] == text for run, text in zip(runs, recorded.spelled, strict=False)),
    }


def _line(runs: Sequence[dict[str, Any]], rows: str, steps: str, seconds: str) -> StepTimeLine:
    """Fit the step time of one kind to the runs' means; zero without steps (the draft of `off`)."""
    stats = [run["stats"] for run in runs if run["stats"][steps]]
    groups = [(each[rows] / each[steps], each[steps], each[seconds]) for each in stats]
    return fit_line(groups) if groups else StepTimeLine(0.0, 0.0)


def _link(setting: ValidationSetting, own_rtt: float) -> LinkSpec:
    """Return the simulated link. Half the proxy's jitter is uniform each way; its deviation is that / √3."""
    return LinkSpec(
        rtt=setting.rtt_ms / 1e3 + own_rtt,
        jitter=setting.jitter_ms / 2e3 / 3**0.5,
        jitter_law="uniform",
    )


def _simulate(
    world: World, setting: ValidationSetting, texts: Sequence[RecordedText], num_texts: int
) -> Iterator[dict[str, Any]]:
    """Yield runs as `simulator.figures` reads them. A seed chooses the text and the delays; the seeds of one
    text differ by multiples of `num_texts`."""
    scheme = "server_streaming" if setting.policy == "off" else setting.policy
    for repeat in range(JITTER_REPEATS if setting.jitter_ms else 1):
        for place, text in enumerate(texts):
            seed = 1 + place + repeat * num_texts
            own = replace(world, tokens=len(text.tokens), prompt_tokens=text.prompt_tokens, seed=seed)
            (result,) = run_scheme(scheme, own)
            yield result.as_run()


def _report(options: ValidateOptions, rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [abs(row["error_percent"]) for row in rows]
    return {
        "settings": {key: getattr(options, key) for key in ("num_prompts", "max_tokens", "seed")},
        "median_error_percent": round(median(errors), 2),
        "worst_error_percent": round(max(errors), 2),
        "results": rows,
    }


def _is_kept(report: dict[str, Any]) -> bool:
    """Tell whether the errors are within the promised limits, on the recorded texts."""
    return bool(
        report["median_error_percent"] <= MEDIAN_PROMISED
        and report["worst_error_percent"] <= WORST_PROMISED
        and all(row["identical"] for row in report["results"])
    )


def _table(report: dict[str, Any]) -> Iterator[str]:
    titles = ("setting", "measured", "predicted", "error", "steps", "predicted")
    cells = (
        (
            row["setting"] if row["identical"] else f"{row['setting']} *",
            f"{row['measured_ms_per_token']:.2f}",
            f"{row['predicted_ms_per_token']:.2f}",
            f"{row['error_percent']:+.1f}%",
            f"{row['measured_target_steps']:.1f}",
            f"{row['predicted_target_steps']:.1f}",
        )
        for row in report["results"]
    )
    yield from table(titles, cells, left=("setting",))
    median_error, worst = report["median_error_percent"], report["worst_error_percent"]
    yield f"ms per token; steps are the target's per text. Error: median {median_error} %, worst {worst} %"
    if not all(row["identical"] for row in report["results"]):
        yield "* the real text is not the recorded one, so the simulator ran another text"
