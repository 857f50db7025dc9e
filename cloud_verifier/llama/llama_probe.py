"""Checks at load that packed steps are right, and measures of which sizes their decodes should be.

The same rows go through the packed path, with other sessions, trees, dead branches and moved cells around
them, and through llama.cpp alone, one text after the other. Like is compared with like. Where decodes of the
same kind give the same bits (`DecodeShapes`), every row must be equal to the bit. Elsewhere, on accelerators
and for the few architectures that llama.cpp computes without flash attention, a row may differ as far as the
file's own rounding explains. Its measure is how the same plain text differs when its prompt is evaluated
token by token, too.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cloud_verifier.core.engine_protocol import FloatArray, StepItem
from cloud_verifier.engine.probe_script import ScriptedSession, StepScript, TokenPath, leaves_of
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.shapes import PROMPT_LEAST, PROMPT_UNIT, DecodeShapes, prompt_cuts
from cloud_verifier.progress import Progress, no_progress
from common.errors import UserError
from common.llama.load_trial import KeptTable, mark_of
from common.llama.runtime import LlamaRuntime, default_threads

logger = logging.getLogger(__name__)

TEXT = """\
The tide comes in twice a day, and each time it is a little later than the day before. Fishermen know this by
heart; visitors read it in a table. To find the next high water, take the last one and add twelve hours and
twenty-five minutes:

def next_high_water(last: datetime, count: int = 1) -> datetime:
    \"\"\"Return the time of the high water that is `count` tides later.\"\"\"
    return last + count * timedelta(hours=12, minutes=25)

A full moon brings a spring tide, which is about 20 % higher. What else would you like to know?
"""
"""Real text: rounding differs most where a model hesitates, and random tokens show only that."""

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16)
"""Rows of one decode whose time is measured, up to the edges of llama.cpp's tiles."""

CONTEXT = 24
"""Tokens before the measured rows."""

LEAST_SLOTS = 96
"""KV slots that the check takes, at most."""

BUDGET = 1.0
"""Seconds in which decodes are measured again, to have each at its best."""

SLACK, FACTOR = 0.01, 4.0
"""Where bits are not equal: allowed differences of a row, a share of the spread of its logits and times the
median by which rounding moves a row. Rows of four published files differ by 2.5 times that at most, and the
worst row of a step that sees one cell too many, or stands one position too low, by 7 times and more."""

ROUTED_SHARE = 0.1
"""Of the rows of a mixture of experts, which may differ by more where bits are not equal: rounding decides
between two experts that are all but equally good. A mistake would move more rows than these."""

OTHER_ROW = 0.5
"""Mean difference of two tokens' logits, a share of their spread. It is about 1 for unrelated tokens."""

RULES = 3
"""Version of the checks. A file that has passed an older version is checked again."""

FLOATS = {0, 1, 30}
"""F32, F16 and BF16 (ggml_type). Their products round otherwise for one row than for several. Quantised
layers hide most of that in a small matrix, as a router's, so it is not measured."""

TILED, EXPERTS = {10, 11, 12, 13, 14, 16, 17, 18, 19, 21, 22, 23, 29}, "_exps."
"""Q2_K to Q6_K and the IQ types of `ggml_tiled_matmul_type_dispatch`, whose kernel changes at eight rows. A
matrix of experts multiplies each one's rows by themselves."""

QUIET = 0.8
"""Share of its processors that a quiet machine gives to this process."""


@dataclass(frozen=True, slots=True)
class LlamaProbeReport:
    """Holds the findings. Differences are relative to the spread of a row's logits. A row's is that from the
    nearer of its plain evaluations."""

    num_rows: int  # compared
    num_equal: int  # of them, to the bit
    median: float
    worst: float
    noise: float  # median between plain evaluations in different decodes; 0 if bits are equal
    shapes: DecodeShapes
    apart: bool  # written tokens round otherwise than prompts
    seconds: float


def probe(engine: LlamaEngine, progress: Progress = no_progress) -> LlamaProbeReport:
    """Measure the engine's decodes, let it use the best ones, and check its packed path.

    All KV is empty afterwards. Raises `UserError` with the reason and the remedy if the model cannot be
    served.
    """
    began, runtime = time.perf_counter(), engine.runtime
    if engine.info.num_slots < LEAST_SLOTS or engine.info.max_positions < LEAST_SLOTS // 2:
        raise UserError(
            f"--slots {engine.info.num_slots} is too small for the check at load; take {LEAST_SLOTS} or more"
        )
    progress("measuring steps", 0.0)
    shapes, apart = measure_shapes(runtime, _tokens(runtime, CONTEXT + SIZES[-1]))
    report = _compare(engine, shapes, apart, progress)
    if shapes.repeats and report.num_equal < report.num_rows:
        logger.info(
            "%s: %d of %d rows of packed steps are not equal to the bit",
            engine.info.name, report.num_rows - report.num_equal, report.num_rows,
        )  # fmt: skip
        report = _compare(engine, DecodeShapes(shapes.times), False, progress)
    report = replace(report, seconds=time.perf_counter() - began)
    _judge(engine.info.name, report)
    progress("checking packed steps", 1.0)
    return report


def _compare(engine: LlamaEngine, shapes: DecodeShapes, apart: bool, progress: Progress) -> LlamaProbeReport:
    """Let the engine use `shapes`, and compare rows of packed steps with texts alone."""
    runtime = engine.runtime
    engine.use(shapes)
    engine.clear()
    progress("checking packed steps", 0.4)
    script = LlamaProbeScript(engine, _tokens(runtime, 96))
    packed = script.run()
    engine.clear()
    progress("checking packed steps", 0.7)
    plain = _plain_rows(runtime, script.prompts)
    differences, noise = _differences(packed, plain), 0.0
    num_equal = sum(np.array_equal(row, plain[path]) for path, row in packed.items())
    if not shapes.repeats:
        singly = _plain_rows(runtime, dict.fromkeys(script.prompts, 0))
        differences = [*map(min, differences, _differences(packed, singly))]
        noise = float(np.median(_differences(singly, plain)))
        if np.isfinite(differences).all() and any(EXPERTS in name for name in runtime.types):
            differences = sorted(differences)[: -int(len(differences) * ROUTED_SHARE)]
    engine.clear()
    median, worst = float(np.median(differences)), float(np.max(differences))
    return LlamaProbeReport(len(packed), num_equal, median, worst, noise, shapes, apart, 0.0)


def probe_once(engine: LlamaEngine, progress: Progress, record: Path | None) -> LlamaProbeReport:
    """Do as `probe` does, unless the file has passed on this machine with the same settings. `record` is the
    file that remembers passes; None for none. What was measured on a busy machine is not remembered."""
    table, name = KeptTable(record), _name_of(engine.runtime)
    report = _read(table.load().get(name))
    if report is not None:
        engine.use(report.shapes)
        return report
    settings = engine.runtime.settings
    began, worked = time.perf_counter(), time.process_time()
    report = probe(engine, progress)
    share = (time.process_time() - worked) / (time.perf_counter() - began)
    if settings.gpu_layers or share >= QUIET * (settings.threads or default_threads()):
        shapes = {name: getattr(report.shapes, name) for name in ("times", "text_rows", "prompt_outputs")}
        entry = asdict(report) | {"shapes": shapes}
        table.keep(name, entry, "the target is checked again at the next start")
    return report


def _name_of(runtime: LlamaRuntime) -> str:
    """Return a name that covers all that the findings depend on."""
    settings = runtime.settings
    marks = mark_of(Path(runtime.path).absolute()), runtime.path, runtime.system_info, os.cpu_count()
    chosen = settings.threads, settings.gpu_layers, settings.tensor_split, settings.batch_invariant
    return json.dumps([RULES, *marks, *chosen])


def _read(entry: Any) -> LlamaProbeReport | None:
    """Return the findings in an entry; None without usable ones."""
    try:
        shapes = entry["shapes"]
        times = tuple((int(rows), float(seconds)) for rows, seconds in shapes["times"])
        measured = DecodeShapes(times, int(shapes["text_rows"]), int(shapes["prompt_outputs"]))
        return LlamaProbeReport(**(entry | {"shapes": measured}))
    except (KeyError, TypeError, ValueError):
        return None


def _judge(name: str, report: LlamaProbeReport) -> None:
    if not report.worst <= SLACK + FACTOR * report.noise:  # also for NaN
        raise UserError(
            f"model '{name}' cannot be served: packed steps differ from llama.cpp alone by "
            f"{report.median:.2g} (median) and {report.worst:.2g} (most) of the logits' spread, and rounding "
            f"by {report.noise:.2g} (median); update llama-cpp-python, or take another file of this model, "
            "and report this line"
        )


def measure_shapes(runtime: LlamaRuntime, tokens: Sequence[int]) -> tuple[DecodeShapes, bool]:
    """Time decodes by their rows and compare their bits. Returns the shapes, and whether written tokens round
    otherwise than prompts. `tokens` are `CONTEXT` and the rows of the largest size."""
    rows = tokens[CONTEXT:]
    sizes = [size for size in SIZES if size <= min(len(rows), runtime.max_rows)]
    ends_at = time.perf_counter() + BUDGET
    times, logits_of = dict[int, float](), dict[int, FloatArray]()
    _read_prompt(runtime, tokens[:CONTEXT])
    single = list[FloatArray]()
    for row in range(PROMPT_LEAST):
        took, logits = _timed(runtime, rows[row : row + 1], CONTEXT + row)
        times[1] = min(took, times.get(1, took))
        single.append(logits[0])
    for size in sizes[1:]:
        for _ in range(3):
            runtime.seq_remove(0, CONTEXT)
            took, logits_of[size] = _timed(runtime, rows[:size], CONTEXT)
            times[size] = min(took, times.get(size, took))
            if time.perf_counter() > ends_at:
                break
    equal = {size: _equal(logits_of[size], single) for size in sizes[1:]}
    measured = tuple(sorted(times.items()))
    runtime.clear()
    prompt_outputs = _prompt_outputs(runtime, tokens)
    if not runtime.settings.batch_invariant or _experts_are_tiled(runtime):
        return DecodeShapes(measured), False
    if not prompt_outputs or not _prompts_repeat(runtime, tokens):
        return DecodeShapes(measured), False
    if not FLOATS.isdisjoint(runtime.types.values()):
        return DecodeShapes(measured, 1, PROMPT_LEAST), True
    text_rows = 1
    while equal.get(text_rows + 1) and text_rows + 1 < PROMPT_LEAST:
        text_rows += 1
    return DecodeShapes(measured, text_rows, prompt_outputs), not equal.get(PROMPT_LEAST, False)


def _experts_are_tiled(runtime: LlamaRuntime) -> bool:
    """Tell whether an expert's number of rows, those of other sessions among them, chooses its kernel."""
    return any(kind in TILED and EXPERTS in name for name, kind in runtime.types.items())


def _equal(logits: FloatArray, single: Sequence[FloatArray]) -> bool:
    return all(np.array_equal(row, alone) for row, alone in zip(logits, single, strict=False))


def _prompts_repeat(runtime: LlamaRuntime, tokens: Sequence[int]) -> bool:
    """Tell whether a prompt's KV has the same bits however it is cut into decodes."""
    prompt, after = tokens[: PROMPT_LEAST + 3 * PROMPT_UNIT], tokens[CONTEXT : CONTEXT + 1]
    rows = list[FloatArray]()
    for first in (len(prompt), PROMPT_LEAST, len(prompt) - PROMPT_LEAST):
        runtime.clear()
        for start, stop in ((0, first), (first, len(prompt))):
            if start < stop:
                _decode(runtime, prompt[start:stop], start)
        rows.append(_decode(runtime, after, len(prompt)).copy())
    runtime.clear()
    return all(np.array_equal(each, rows[0]) for each in rows)


def _prompt_outputs(runtime: LlamaRuntime, tokens: Sequence[int]) -> int:
    """Return the fewest rows with logits at which a row of a prompt's decode has its bits; 0 if no number
    settles them. Raises `UserError` if the logits are not that row's."""
    prompt = tokens[: PROMPT_LEAST + 3 * PROMPT_UNIT]
    rows = list[FloatArray]()
    for count in (1, PROMPT_LEAST, len(prompt)):
        runtime.clear()
        rows.append(_decode(runtime, prompt, 0, num_outputs=count)[-1].copy())
    runtime.clear()
    if any(np.abs(row - rows[2]).mean() > OTHER_ROW * rows[2].std() for row in rows):
        raise UserError(
            f"{runtime.path} cannot be served: llama.cpp returns the logits of other tokens than asked for "
            f"({runtime.description}); update llama-cpp-python, or choose another model"
        )
    if not np.array_equal(rows[1], rows[2]):
        return 0
    return 1 if np.array_equal(rows[0], rows[1]) else PROMPT_LEAST


def _timed(runtime: LlamaRuntime, tokens: Sequence[int], start: int) -> tuple[float, FloatArray]:
    began = time.perf_counter()
    logits = _decode(runtime, tokens, start)
    logits[:, 0].sum()  # a read waits until an accelerator is done
    return time.perf_counter() - began, logits.copy()


def _decode(
    runtime: LlamaRuntime, tokens: Sequence[int], start: int, filling: int = 0, num_outputs: int | None = None
) -> FloatArray:
    """Evaluate tokens of sequence 0 from position `start` on, beside `filling` rows of another sequence.
    Return the logits of the last `num_outputs`, or of all."""
    count = len(tokens)
    num_outputs = count if num_outputs is None else num_outputs
    runtime.batch.fill(
        [*tokens, *[0] * filling],
        [*range(start, start + count), *range(filling)],
        [0] * count + [1] * filling,
        [0] * (count - num_outputs) + [1] * num_outputs + [0] * filling,
    )
    if code := runtime.decode():
        raise UserError(
            f"llama.cpp cannot evaluate {count} tokens of {runtime.path} (code {code}); if memory is short, "
            "lower --slots"
        )
    if filling:
        runtime.seq_remove(1, 0)
    return runtime.logits(num_outputs)


def _read_prompt(runtime: LlamaRuntime, tokens: Sequence[int]) -> list[FloatArray]:
    """Read a prompt into sequence 0 of the empty KV, in the decodes that a step would have."""
    runtime.clear()
    rows, start = list[FloatArray](), 0
    for size in prompt_cuts(len(tokens), min(runtime.n_together, runtime.max_rows)):
        part = tokens[start : start + size]
        rows += list(_decode(runtime, part, start, size - len(part)).copy())
        start += size
    return rows


def _tokens(runtime: LlamaRuntime, count: int) -> list[int]:
    """Return the first tokens of `TEXT`, which is repeated if it has fewer."""
    own = runtime.tokenize(TEXT, False) or [0]
    return [own[place % len(own)] for place in range(count)]


class LlamaProbeScript(StepScript[FloatArray]):
    """Drives an engine through what sessions do: prompts together, trees, a branch that is committed instead
    of the first one, a prefix that two sessions share, slots and cells that are used again."""

    def __init__(self, engine: LlamaEngine, tokens: Sequence[int]) -> None:
        super().__init__(list(range(engine.info.num_slots))[::-1], engine.logits)
        self._compact = engine.forward.sequences.compact
        self._tokens = tokens
        self._source = iter([*tokens[::-1], *tokens])

    def run(self) -> dict[TokenPath, FloatArray]:
        """Return the rows of logits by token path."""
        first, second = ScriptedSession(1, prompt_length=16), ScriptedSession(2, prompt_length=8)
        prompts = self._chain(first, self._tokens[:16]), self._chain(second, self._tokens[30:38])
        self.step((first, prompts[0]), (second, prompts[1]))
        for session, prompt in zip((first, second), prompts, strict=True):
            self.commit(session, prompt, len(prompt.tokens) - 1)
        tree, chain = self._tree(first, (-1, 0, 0, 1, 2)), self._tree(second, (-1, 0))
        self.step((first, tree), (second, chain))
        dead = self.commit(first, tree, 4) + self.commit(second, chain, 0)
        third = ScriptedSession(3, first.tokens[:8], first.slots[:8], prompt_length=16)
        prompt = self._chain(third, self._tokens[50:58])
        self.step((second, self._tree(second, (-1,))), (third, prompt))
        self.commit(third, prompt, len(prompt.tokens) - 1)
        self.free += dead  # and are taken first
        self._compact()
        tree = self._tree(first, (-1, 0, 1, -1, 3, 4))
        self.step((third, self._tree(third, (-1,))), (first, tree))
        self.commit(first, tree, 5)
        self.step((first, self._tree(first, (-1, 0, 1))))
        return self.rows

    def _chain(self, session: ScriptedSession, tokens: Sequence[int]) -> StepItem:
        return self.item(session, range(-1, len(tokens) - 1), tokens)

    def _tree(self, session: ScriptedSession, parents: Sequence[int]) -> StepItem:
        return self.item(session, parents, [next(self._source) for _ in parents])


def _plain_rows(runtime: LlamaRuntime, prompts: Mapping[TokenPath, int]) -> dict[TokenPath, FloatArray]:
    """Return the logits of each path, evaluated alone: its prompt, of the given length, in decodes of a
    prompt's kind, and all tokens after it one by one."""
    return {path: row for path, row in _all_plain(runtime, prompts) if path in prompts}


def _all_plain(
    runtime: LlamaRuntime, prompts: Mapping[TokenPath, int]
) -> Iterator[tuple[TokenPath, FloatArray]]:
    before: TokenPath = ()
    for leaf in sorted(leaves_of(prompts)):
        length = prompts[leaf]
        if before[:length] != leaf[:length]:
            for place, row in enumerate(_read_prompt(runtime, leaf[:length])):
                yield leaf[: place + 1], row
            start = length
        else:
            start = next(at for at in range(length, len(leaf) + 1) if before[: at + 1] != leaf[: at + 1])
            runtime.seq_remove(0, start)
        for place in range(start, len(leaf)):
            yield leaf[: place + 1], _decode(runtime, leaf[place : place + 1], place)[0].copy()
        before = leaf


def _differences(rows: Mapping[TokenPath, FloatArray], plain: Mapping[TokenPath, FloatArray]) -> list[float]:
    """Return each row's difference, root mean square, over the standard deviation of the plain row."""
    return [
        float(np.sqrt(np.square(row - plain[path]).mean()) / max(float(plain[path].std()), 1e-6))
        for path, row in rows.items()
    ]
