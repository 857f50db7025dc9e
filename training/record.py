"""Implements `forerun record`: records real models on real prompts for the simulator."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.engine_protocol import TargetEngine
from cloud_verifier.core.scheduler import VerifyScheduler
from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from common.messages import Commit, Open
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary, explain_mismatch
from edge_client.core.effects import DraftRow, Expansion, Reroot
from forerun.terminal import note
from simulator.knowledge import NUM_CANDIDATES
from simulator.recordings import RecordedText, Recording, RecordingHeader, write_recording
from training import demo_pair
from training.options import SAMPLING, SamplingOptions, check_out, open_draft, read_prompts
from training.prompts import bundled
from training.session_drafter import SessionDrafter

if TYPE_CHECKING:
    from common.llama.runtime import LlamaRuntime

DESCRIPTION = """\
Let the target write a text after each prompt, and record the draft's candidates for every token of it. Both
models run in this process, one after the other. The simulator replays the file:

  forerun record --out demo.jsonl --temperature 0.8 --ignore-eos
  (in a world)  [draft] recording = "demo.jsonl"

The bundled prompts and models are used unless --prompt, --prompts, --target or --draft names others."""

BATCH = 16
"""Number of texts that the target writes at a time; the verifier's own limit is 64 sessions."""

WIDTHS = (1, 2, 4, 8)  # rows of the draft steps that are timed
TIMED_STEPS = 16  # of each width, after one warm-up step
DECIMALS = 4  # of a score in nats; further ones are rounding noise


@dataclass(frozen=True, kw_only=True)
class RecordOptions(SamplingOptions):
    """Declares what is recorded. Raises `UserError` before the slow loading."""

    out: Path = setting(REQUIRED, "file for the recording, JSON lines", "FILE")
    prompt: tuple[str, ...] | None = setting(None, "prompt (default: bundled ones); may be repeated", "TEXT")
    prompts: Path | None = setting(None, "file of prompts: a JSON list of texts, or JSON lines", "FILE")
    target: str = setting(str(demo_pair.TARGET_DIR), "folder or hub id of the target model", "PATH")
    draft: str = setting(str(demo_pair.DRAFT_GGUF), "draft model: GGUF file or hf://...", "PATH")
    device: str = setting("cpu", "device of the target: cpu or cuda")
    threads: int = setting(0, "threads of the draft model; 0: one per core", "N")
    context: int = setting(4096, "most tokens of a prompt and its text together", "N")
    candidates: int = setting(5, f"recorded candidates per token, 1 to {NUM_CANDIDATES}", "K")
    max_tokens: int = setting(96, "most tokens of each text", "N", group=SAMPLING)

    def __post_init__(self) -> None:
        _ = self.sampling  # checked
        if not 1 <= self.candidates <= NUM_CANDIDATES:
            raise UserError(f"--candidates is {self.candidates}; it must lie in 1 to {NUM_CANDIDATES}")
        if self.context <= self.max_tokens:
            raise UserError(f"--context is {self.context}; it must exceed --max-tokens {self.max_tokens}")
        if self.prompt is not None and self.prompts is not None:
            raise UserError("--prompt and --prompts were both given; give only one of them")
        check_out(self.out)


def add_parser(commands: Any) -> None:
    words = "record real models for the simulator"
    add_command(commands, "record", words, _run, RecordOptions, DESCRIPTION)


def _run(options: RecordOptions) -> int:
    prompts = options.prompt or (bundled() if options.prompts is None else read_prompts(options.prompts))
    recording = record(options, prompts)
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


def record(options: RecordOptions, prompts: Sequence[str]) -> Recording:
    """Record both models. Raise `UserError` if models, prompts or machine do not fit each other."""
    from cloud_verifier.engine.torch_loading import load_engine
    from common.llama.model import LlamaSettings
    from edge_client.draft.group import DraftGroup, MemberDrafter

    note("loading the draft model and the target model")
    sampling, context = options.sampling, options.context
    settings = LlamaSettings(options.draft, n_ctx=context, threads=options.threads)
    with open_draft(settings) as runtime:
        ids = _tokenized(runtime, prompts, context, sampling.max_tokens)
        dtype = "float32" if options.device == "cpu" else "auto"  # as `forerun verify`
        engine, table = load_engine(options.target, BATCH * context, dtype=dtype, device=options.device)
        edge = Vocabulary(runtime.token_table())
        if edge.fingerprint != engine.info.fingerprint:
            raise UserError(explain_mismatch(edge, Vocabulary(list(table))))
        note(f"the target writes {len(ids)} texts")
        texts = write_texts(engine, ids, sampling)
        note("the draft reads them")
        drafter = MemberDrafter(DraftGroup(runtime, 1, options.candidates))
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


def write_texts(
    engine: TargetEngine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    times: list[float] | None = None,
    batch: int = BATCH,
) -> list[list[int]]:
    """Return the token ids that the target writes after each prompt without drafts.

    Append the seconds of each step of one row to `times`. Raise the `ForerunError` of a refusal.
    """
    texts: list[list[int]] = [[] for _ in prompts]
    for first in range(0, len(prompts), batch):
        scheduler = VerifyScheduler(engine.info)
        for key, prompt in enumerate(prompts[first : first + batch], first):
            scheduler.on_open(key, Open(tuple(prompt), sampling, engine.info.fingerprint), 0.0)
        for effect in _effects(scheduler, engine, [] if times is None else times):
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                texts[effect.session] += effect.message.tokens
            elif isinstance(effect, End) and effect.error is not None:
                raise effect.error
    return texts


def _effects(scheduler: VerifyScheduler, engine: TargetEngine, times: list[float]) -> Iterator[Reply | End]:
    yield from scheduler.effects()
    while (plan := scheduler.next_step(0.0)) is not None:
        yield from scheduler.effects()
        began = time.perf_counter()
        result = engine.evaluate(plan)
        if plan.num_rows == 1:
            times.append(time.perf_counter() - began)
        scheduler.on_step_done(result, 0.0)
        yield from scheduler.effects()


def said_before(
    drafter: SessionDrafter, prompt: Sequence[int], text: Sequence[int], sampling: SamplingParams
) -> list[Expansion]:
    """Return the draft's candidates before every token of `text`."""
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
    """Build one recorded text. Scores are rounded to `DECIMALS`; an overflowed draft has no candidates."""
    candidates, scores, ranks = list[tuple[int, ...]](), list[tuple[float, ...]](), list[int | None]()
    for token, expansion in zip(text, said, strict=True):
        is_finite = all(abs(score) < float("inf") for score in expansion.scores)
        ids = tuple(int(each) for each in expansion.tokens) if is_finite else ()
        candidates.append(ids)
        scores.append(tuple(round(float(score), DECIMALS) for score in expansion.scores[: len(ids)]))
        ranks.append(ids.index(token) + 1 if token in ids else None)
    tokens = tuple(int(token) for token in text)
    return RecordedText(len(prompt), tokens, tuple(candidates), tuple(scores), tuple(ranks))


def draft_step_ms(
    drafter: SessionDrafter, prompt: Sequence[int], sampling: SamplingParams
) -> dict[int, float]:
    """Return the median milliseconds of a draft step by its rows, children of one node after the prompt."""
    ids = count(1)
    tip = next(ids)
    drafter.start(prompt, tip, sampling)
    drafter.expand([DraftRow(tip, None, prompt[-1], len(prompt) - 1)])
    medians: dict[int, float] = {}
    for width in WIDTHS:
        times = list[float]()
        for _ in range(TIMED_STEPS + 1):
            rows = [DraftRow(next(ids), tip, token, len(prompt)) for token in range(1, width + 1)]
            began = time.perf_counter()
            drafter.expand(rows)
            times.append(time.perf_counter() - began)
            drafter.reroot(Reroot((), tuple(row.id for row in rows)))
        medians[width] = _median_ms(times)
    return medians


def target_step_ms(engine: TargetEngine, prompt: Sequence[int], sampling: SamplingParams) -> dict[int, float]:
    """Return the median milliseconds of a one-row target step while streaming; empty without such a step."""
    times = list[float]()
    write_texts(engine, [prompt], replace(sampling, max_tokens=TIMED_STEPS + 2), times)
    return {1: _median_ms(times)} if len(times) > 1 else {}


def _median_ms(times: Sequence[float]) -> float:
    """Return the median without the first time, which only warms up."""
    return round(median(times[1:]) * 1e3, 3)


def _model_name(source: str) -> str:
    """Return a local path's last name, or a hub id unchanged."""
    path = Path(source)
    return path.resolve().name if path.exists() else source


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
