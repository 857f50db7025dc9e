"""`forerun record`: real models on real prompts, written down for the simulator."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import demo_models
from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import StepPlan, StepResult, TargetEngine, TargetInfo
from common.errors import UserError
from common.messages import Commit, Open
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary, explain_mismatch
from edge_client.core.drafter import Drafter, DraftRow, Expansion, Reroot
from forerun.edge_places import models_folder, try_draft
from forerun.options import add_sampling, sampling_from
from forerun.paint import note
from simulator.knowledge import NUM_CANDIDATES
from simulator.recordings import RecordedText, Recording, RecordingHeader, write_recording

if TYPE_CHECKING:
    from edge_client.llama.runtime import LlamaRuntime

DESCRIPTION = """\
Lets the target write a text after each prompt, and the draft say before every token of it what comes next.
Both models run in this process, one after the other. The simulator replays the file:

  forerun record --out demo.jsonl --temperature 0.8 --ignore-eos
  (in a world)  [draft] recording = "demo.jsonl"

Without --prompt or --prompts the bundled prompts are taken, without --target and --draft the bundled pair."""

BATCH = 16
"""Texts that the target writes at a time; the verifier's own limit is 64 sessions."""

WIDTHS = (1, 2, 4, 8)  # rows of the draft steps that are timed
TIMED_STEPS = 16  # of each width, after one that only warms up
DECIMALS = 4  # of a score, nats; beyond is rounding of the models'


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "record",
        help="run real models and write down what the draft knew, for the simulator",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--out", type=Path, required=True, metavar="FILE", help="the recording, JSON lines")
    option("--prompt", action="append", metavar="TEXT", help="may be given several times")
    option("--prompts", type=Path, metavar="FILE", help='a JSON list of texts or of {"text": ...}')
    option("--target", default=str(demo_models.TARGET_DIR), metavar="PATH", help="folder or hub id")
    option("--draft", default=str(demo_models.DRAFT_GGUF), metavar="PATH", help="GGUF file or hf://...")
    option("--device", default="cpu", help="of the target: cpu or cuda (%(default)s)")
    option("--threads", type=int, default=0, metavar="N", help="of the draft model; 0 = one per core")
    option("--context", type=int, default=4096, metavar="N", help="tokens of a prompt and its text at most")
    option(
        "--candidates",
        type=int,
        default=5,
        metavar="K",
        help=f"of the draft at each place, 1 to {NUM_CANDIDATES}; the product looks at 5 (%(default)s)",
    )
    add_sampling(parser, max_tokens=96)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    sampling = sampling_from(options)
    _check_options(options)
    prompts = _prompts(options)
    recording = record(options, prompts, sampling)
    write_recording(options.out, recording)
    header, num_tokens = recording.header, sum(len(text.tokens) for text in recording.texts)
    print(
        f"{options.out}: {len(recording.texts)} texts, {num_tokens} tokens; the draft's best token is the "
        f"target's at {recording.hit_rate:.1%} of them"
    )
    for name, times in (("draft", header.draft_step_ms), ("target", header.target_step_ms)):
        shown = ", ".join(f"{rows} rows {ms:g}" for rows, ms in times.items())
        print(f"{name} step, median ms: {shown or 'not measured'}")
    return 0


def record(options: argparse.Namespace, prompts: Sequence[str], sampling: SamplingParams) -> Recording:
    """Raises `UserError` for models or prompts that do not fit each other or the machine."""
    try:  # here, so that --help comes at once
        from cloud_verifier.engine.loading import load_engine
        from edge_client.llama.drafter import LlamaDrafter
        from edge_client.llama.runtime import LlamaRuntime
        from edge_client.llama.settings import LlamaSettings
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[edge,verifier]'") from error
    note("loading the draft model and the target model")
    settings = LlamaSettings(
        options.draft,
        n_ctx=options.context,
        threads=options.threads,
        models=models_folder(options.draft),
    )
    try_draft(settings)
    with LlamaRuntime(settings) as runtime:
        ids = _tokenized(runtime, prompts, options.context, sampling.max_tokens)
        dtype = "float32" if options.device == "cpu" else "auto"  # as `forerun verify`
        slots = BATCH * options.context
        engine, table = load_engine(options.target, slots, dtype=dtype, device=options.device)
        edge = Vocabulary(runtime.token_table())
        if edge.fingerprint != engine.info.fingerprint:
            raise UserError(explain_mismatch(edge, Vocabulary(list(table))))
        note(f"the target writes {len(ids)} texts")
        texts = write_texts(engine, ids, sampling)
        note("the draft reads them")
        drafter = LlamaDrafter(runtime, options.candidates)
        recorded = tuple(
            recorded_text(prompt, text, said_before(drafter, prompt, text, sampling))
            for prompt, text in zip(ids, texts, strict=True)
        )
        header = RecordingHeader(
            _model_name(options.target),
            _model_name(options.draft),
            sampling.temperature,
            sampling.seed,
            draft_step_ms(drafter, ids[0], sampling),
            target_step_ms(engine, ids[0], sampling),
        )
    return Recording(header, recorded)


# The two models -------------------------------------------------------------------------------------------


def write_texts(
    engine: TargetEngine, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[list[int]]:
    """What the target writes after each prompt, token ids, without any draft. Raises the `ForerunError` with
    which the verifier refused one."""
    texts: list[list[int]] = []
    for first in range(0, len(prompts), BATCH):
        texts += _write_batch(engine, prompts[first : first + BATCH], sampling)
    return texts


def _write_batch(
    engine: TargetEngine, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[list[int]]:
    scheduler = VerifyScheduler(engine.info)
    for key, prompt in enumerate(prompts):
        scheduler.on_open(key, Open(tuple(prompt), sampling, engine.info.fingerprint), 0.0)
    texts: list[list[int]] = [[] for _ in prompts]
    for effect in _effects(scheduler, engine):
        if isinstance(effect, Reply) and isinstance(effect.message, Commit):
            texts[effect.session] += effect.message.tokens
        elif isinstance(effect, End) and effect.error is not None:
            raise effect.error
    return texts


def _effects(scheduler: VerifyScheduler, engine: TargetEngine) -> Iterator[Reply | End]:
    yield from scheduler.effects()
    while (plan := scheduler.next_step(0.0)) is not None:
        yield from scheduler.effects()
        scheduler.on_step_done(engine.evaluate(plan), 0.0)
        yield from scheduler.effects()


def said_before(
    drafter: Drafter, prompt: Sequence[int], text: Sequence[int], sampling: SamplingParams
) -> list[Expansion]:
    """The draft's candidates before every token of `text`."""
    ids = count(1)
    tip = next(ids)
    drafter.start(prompt, tip, sampling)
    said, last = [], prompt[-1]
    for position, token in enumerate(text, len(prompt)):
        said += drafter.expand([DraftRow(tip, None, last, position - 1)])
        tip, last = next(ids), token
        drafter.reroot(Reroot(((tip, token),), ()))
    return said


def recorded_text(prompt: Sequence[int], text: Sequence[int], said: Sequence[Expansion]) -> RecordedText:
    """Scores rounded to `DECIMALS`; a draft that overflowed had no candidates."""
    candidates, scores, ranks = list[tuple[int, ...]](), list[tuple[float, ...]](), list[int | None]()
    for token, expansion in zip(text, said, strict=True):
        is_finite = all(abs(score) < float("inf") for score in expansion.scores)
        ids = tuple(int(each) for each in expansion.tokens) if is_finite else ()
        candidates.append(ids)
        scores.append(tuple(round(float(score), DECIMALS) for score in expansion.scores[: len(ids)]))
        ranks.append(ids.index(token) + 1 if token in ids else None)
    tokens = tuple(int(token) for token in text)
    return RecordedText(len(prompt), tokens, tuple(candidates), tuple(scores), tuple(ranks))


# Their times ----------------------------------------------------------------------------------------------


def draft_step_ms(drafter: Drafter, prompt: Sequence[int], sampling: SamplingParams) -> dict[int, float]:
    """Median milliseconds of a draft step by rows, which are children of one node just behind the prompt."""
    ids = count(1)
    tip = next(ids)
    drafter.start(prompt, tip, sampling)
    drafter.expand([DraftRow(tip, None, prompt[-1], len(prompt) - 1)])
    found: dict[int, float] = {}
    for width in WIDTHS:
        times = list[float]()
        for _ in range(TIMED_STEPS + 1):
            rows = [DraftRow(next(ids), tip, token, len(prompt)) for token in range(1, width + 1)]
            began = time.perf_counter()
            drafter.expand(rows)
            times.append(time.perf_counter() - began)
            drafter.reroot(Reroot((), tuple(row.id for row in rows)))
        found[width] = _median_ms(times)
    return found


class TimedEngine:
    """A target that remembers how long its steps of one row took, seconds."""

    def __init__(self, engine: TargetEngine) -> None:
        self._engine = engine
        self.times: list[float] = []

    @property
    def info(self) -> TargetInfo:
        return self._engine.info

    def evaluate(self, plan: StepPlan) -> StepResult:
        began = time.perf_counter()
        result = self._engine.evaluate(plan)
        if plan.num_rows == 1:
            self.times.append(time.perf_counter() - began)
        return result


def target_step_ms(engine: TargetEngine, prompt: Sequence[int], sampling: SamplingParams) -> dict[int, float]:
    """Median milliseconds of a target step of one row, streaming a short text; empty if that has none."""
    timed = TimedEngine(engine)
    write_texts(timed, [prompt], replace(sampling, max_tokens=TIMED_STEPS + 2))
    return {1: _median_ms(timed.times)} if len(timed.times) > 1 else {}


def _median_ms(times: Sequence[float]) -> float:
    """The first only warms up."""
    return round(median(times[1:]) * 1e3, 3)


# What the user gave ---------------------------------------------------------------------------------------


def _model_name(source: str) -> str:
    """A local file's or folder's without where it lies here; another's as it is."""
    path = Path(source)
    return path.resolve().name if path.exists() else source


def _check_options(options: argparse.Namespace) -> None:
    """Before seconds are spent on loading."""
    if not 1 <= options.candidates <= NUM_CANDIDATES:
        raise UserError(f"--candidates is {options.candidates}; it must lie in 1 to {NUM_CANDIDATES}")
    if options.context <= options.max_tokens:
        raise UserError(f"--context is {options.context}; it must exceed --max-tokens {options.max_tokens}")
    if options.out.is_dir() or not options.out.parent.is_dir():
        raise UserError(f"--out is {options.out}; a file in a folder that exists was expected")


def _prompts(options: argparse.Namespace) -> list[str]:
    if options.prompt is not None and options.prompts is not None:
        raise UserError("--prompt and --prompts were both given; one of them was expected")
    if options.prompt is not None:
        return list(options.prompt)
    path = options.prompts or demo_models.PROMPTS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the prompts {path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # JSON's errors and UTF-8's
        raise UserError(f"the prompts {path} are not JSON in UTF-8: {error}") from error
    entries: list[Any] = found if isinstance(found, list) else []
    texts = [each.get("text") if isinstance(each, dict) else each for each in entries]
    kept = [text for text in texts if isinstance(text, str)]
    if not kept or len(kept) < len(texts):
        raise UserError(f'the prompts {path} are not a list of texts or of objects like {{"text": ...}}')
    return kept


def _tokenized(
    runtime: LlamaRuntime, prompts: Sequence[str], context: int, max_tokens: int
) -> list[list[int]]:
    ids = [runtime.tokenize(prompt, True) for prompt in prompts]
    for prompt, tokens in zip(prompts, ids, strict=True):
        if not tokens:
            raise UserError(f"the prompt {prompt[:40]!r} is empty; at least one token is needed")
        if len(tokens) + max_tokens > context:
            raise UserError(
                f"the prompt {prompt[:40]!r} has {len(tokens)} tokens; with --max-tokens {max_tokens} that "
                f"is more than --context {context}"
            )
    return ids
