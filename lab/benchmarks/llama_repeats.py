"""Counts the texts of a GGUF target that repeat themselves whatever happens beside them.

    python -m lab.benchmarks.llama_repeats --target FILE --texts 40

Each text is written undrafted and alone first. Then it is written again: with its prompt in the cache, with
drafts of which some are wrong, in the company of others, and resumed in its middle. Two things must hold: the
texts are equal, and a row of logits has one value for one text so far, to the bit. The second one finds a
fault long before a text shows it. Exit code 1 if a text does not repeat itself that should.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from cloud_verifier.core.batching import most_rows
from cloud_verifier.core.effects import End, Reply
from cloud_verifier.core.engine_protocol import FloatArray
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine
from cloud_verifier.llama.llama_probe import TEXT
from common.errors import LocalError
from common.messages import Close, Commit, Open, Opened, Propose
from common.sampling import SamplingParams
from lab.bench.report import Machine, carry_out, finish, parser_of, table

COMPANY = 6
"""Sessions that write at once."""

DEPTH, WRONG = 5, 0.15
"""Levels of a draft, and the share of its nodes whose token is wrong. Each node has a wrong sibling, too."""

OPENINGS = (
    "Once upon a time",
    "def main():\n    '''Print",
    "The three causes of",
    "Dear Madam,\nthank you for",
    "Q: How do",
)
SUBJECTS = ("a tide table", "the old lighthouse", "12 ships in fog", "a list of numbers", "our last harvest",
            "the night train", "two brothers", "a broken clock")  # fmt: skip
LONG_EVERY = 8
"""Of so many prompts one is long, so that its text crosses the sizes at which llama.cpp changes its
kernels."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Holds the counts for one temperature."""

    temperature: float
    num_texts: int
    equal: dict[str, int]  # texts equal to the first ones, by what was different
    num_rows: int  # different texts so far whose logits were seen
    num_doubtful: int  # of them, those with several values

    @property
    def holds(self) -> bool:
        return not self.num_doubtful and all(count == self.num_texts for count in self.equal.values())


def count_repeats(
    engine: LlamaEngine,
    num_texts: int,
    num_tokens: int,
    temperatures: Sequence[float] = (0.0, 0.8),
) -> list[Repeats]:
    """Write `num_texts` texts of `num_tokens` tokens in each way. All KV is empty afterwards. Raises
    `UserError` or `CapacityError` if the engine has too few slots for them."""
    counts = list[Repeats]()
    for temperature in temperatures:
        requests = [
            _request(
                engine,
                number,
                SamplingParams(temperature, seed=number, max_tokens=num_tokens, ignore_eos=True),
            )
            for number in range(num_texts)
        ]
        with _Watched(engine) as watched:
            texts, equal = list[tuple[int, ...]](), dict[str, int]()
            passes = _passes(engine, requests, texts)
            for name, write in passes.items():
                written = write()
                if not texts:
                    texts += written
                else:
                    equal[name] = sum(one == other for one, other in zip(texts, written, strict=True))
        counts.append(Repeats(temperature, num_texts, equal, len(watched.values), len(watched.doubtful)))
    engine.clear()
    return counts


def _passes(
    engine: LlamaEngine, requests: Sequence[Open], texts: Sequence[tuple[int, ...]]
) -> dict[str, Callable[[], list[tuple[int, ...]]]]:
    """Return what writes in each way, in order. `texts` holds the first texts when the second begins."""
    first = _Desk(engine)

    def resumed() -> list[tuple[int, ...]]:
        halves = [text[: len(text) // 2] for text in texts]
        resuming = [replace(each, committed=half) for each, half in zip(requests, halves, strict=True)]
        rests = _Desk(engine).write(resuming)
        return [half + rest for half, rest in zip(halves, rests, strict=True)]

    return {
        "alone": lambda: first.write(requests),
        "again, cached": lambda: first.write(requests),
        "again, not cached": lambda: _Desk(engine).write(requests),
        "drafted": lambda: _Desk(engine).write(requests, texts),
        f"drafted, {COMPANY} at once": lambda: _Desk(engine).write(requests, texts, COMPANY),
        "resumed": resumed,
    }


def _request(engine: LlamaEngine, number: int, sampling: SamplingParams) -> Open:
    opening, subject = OPENINGS[number % len(OPENINGS)], SUBJECTS[number // len(OPENINGS) % len(SUBJECTS)]
    text = f"{opening} {subject}, number {number}"
    if number % LONG_EVERY == LONG_EVERY - 1:
        text = TEXT * 3 + text
    runtime = engine.runtime
    prompt = (*runtime.begin_ids, *runtime.tokenize(text, False))
    room = engine.info.max_positions - sampling.max_tokens - 1
    return Open(prompt[-room:], sampling, engine.info.fingerprint)


@dataclass(slots=True)
class RepeatedText:
    """Writes one text, with drafts that know how it goes on."""

    place: int
    request: Open
    known: Sequence[int]  # the whole text; empty: no drafts
    text: list[int] = field(default_factory=list)

    def draft(self, random: np.random.Generator, vocab_size: int) -> Propose | None:
        """Return nodes below the tip, each with a wrong sibling; None at the end of what is known."""
        at = len(self.request.committed) + len(self.text)
        ahead = self.known[at : at + DEPTH]
        if not ahead:
            return None
        tokens, deltas, above = list[int](), list[int](), 0
        for level, token in enumerate(ahead):
            wrong = int(random.integers(vocab_size))
            own = wrong if random.random() < WRONG else token
            other = (own + 1 + int(random.integers(vocab_size - 1))) % vocab_size
            for each in (own, other):
                deltas.append(len(tokens) - above if level else 0)
                tokens.append(each)
            above = len(tokens) - 2
        anchor = len(self.request.prompt) + at - 1
        return Propose(tuple(tokens), bytes([8] * len(tokens)), tuple(deltas), anchor)


class _Desk:
    """Runs a scheduler on the engine, whose KV is empty at first."""

    def __init__(self, engine: LlamaEngine) -> None:
        engine.clear()
        info = replace(engine.info, row_times=())  # drafts are evaluated, however dear their rows are
        self._engine, self._scheduler = engine, VerifyScheduler(info, SchedulerConfig())
        self._random = np.random.default_rng(1)
        self._keys, self._now = 0, 0.0

    def write(
        self, requests: Sequence[Open], known: Sequence[Sequence[int]] = (), together: int = 1
    ) -> list[tuple[int, ...]]:
        texts: list[tuple[int, ...]] = [()] * len(requests)
        left = [
            RepeatedText(place, request, known[place] if known else ())
            for place, request in enumerate(requests)
        ]
        open_ones = dict[int, RepeatedText]()
        while left or open_ones:
            while left and len(open_ones) < together:
                self._keys += 1
                open_ones[self._keys] = left.pop(0)
                self._scheduler.on_connect(self._keys, self._now)
                self._scheduler.on_open(self._keys, open_ones[self._keys].request, self._now)
            self._deliver(open_ones)
            for key in [key for key, writer in open_ones.items() if _is_whole(writer)]:
                writer = open_ones.pop(key)
                texts[writer.place] = tuple(writer.text)
                self._scheduler.on_close(key, Close(), self._now)
            self._step()
        self._deliver(open_ones)
        return texts

    def _step(self) -> None:
        self._now += 0.01
        plan = self._scheduler.next_step(self._now)
        if plan is not None:
            result = self._engine.evaluate(plan)
            self._now += 0.03
            self._scheduler.on_step_done(result, self._now)

    def _deliver(self, open_ones: dict[int, RepeatedText]) -> None:
        for effect in self._scheduler.effects():
            if isinstance(effect, End) and effect.error is not None:
                raise effect.error
            if not isinstance(effect, Reply) or (writer := open_ones.get(effect.session)) is None:
                continue
            if isinstance(effect.message, Commit):
                writer.text += effect.message.tokens
            if isinstance(effect.message, Commit | Opened):
                nodes = writer.draft(self._random, self._engine.info.vocab_size)
                if nodes is not None:
                    self._scheduler.on_propose(effect.session, nodes, self._now)


def _is_whole(writer: RepeatedText) -> bool:
    return len(writer.request.committed) + len(writer.text) >= writer.request.sampling.max_tokens


class _Watched:
    """Keeps a checksum of each row of logits of an engine by the text so far, inside a block."""

    def __init__(self, engine: LlamaEngine) -> None:
        self._forward = engine.forward
        self._run = self._forward.run
        self._paths = dict[int, int]()  # by slot: a number for the prompt's length and the tokens up to it
        self.values = dict[int, int]()  # by path
        self.doubtful = set[int]()  # paths

    def __enter__(self) -> _Watched:
        self._forward.run = self._watch  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._forward.run = self._run  # type: ignore[method-assign]

    def _watch(self, step: PackedStep) -> FloatArray:
        logits = self._run(step)
        rows = iter(logits)
        for item in step.items:
            start = hash((item.prompt_length,))
            if len(item.prefix_slots):
                start = self._paths[int(item.prefix_slots[-1])]
            paths = list[int]()
            for token, parent in zip(item.tokens.tolist(), item.parents.tolist(), strict=True):
                paths.append(hash((start if parent < 0 else paths[parent], token)))
            self._paths.update(zip(item.slots.tolist(), paths, strict=True))
            for row in item.outputs.tolist():
                value = zlib.crc32(next(rows).tobytes())
                if self.values.setdefault(paths[row], value) != value:
                    self.doubtful.add(paths[row])
        return logits


CHECKED_SLOTS = 8192
"""KV slots: six texts at once, and some that are cached."""


def _run(options: argparse.Namespace) -> None:
    limits = SchedulerConfig()
    llama = LlamaOptions(threads=options.threads, deterministic=options.deterministic)
    engine, _, report = load_engine(options.target, CHECKED_SLOTS, limits.max_rows, most_rows(limits), llama)
    with engine.runtime:
        counts = count_repeats(engine, options.texts, options.tokens)
    rows = [asdict(each) for each in counts]
    about = {"target": engine.info.name, "repeats": report.shapes.repeats, "machine": Machine().told()}
    finish(options, {**about, "texts": rows}, table(rows))
    if report.shapes.repeats and not all(each.holds for each in counts):
        raise LocalError(f"texts of {options.target} do not repeat themselves, although they should")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("llama_repeats", __doc__)
    option = parser.add_argument
    option("--target", required=True, metavar="FILE", help="GGUF file")
    option("--texts", type=int, default=40, metavar="N", help="texts of each kind (%(default)s)")
    option("--tokens", type=int, default=96, metavar="N", help="tokens of a text (%(default)s)")
    option("--threads", type=int, default=0, metavar="N", help="threads; 0: all processors but one")
    option("--deterministic", action=argparse.BooleanOptionalAction, default=None, help="as `forerun verify`")
    parser.set_defaults(run=_run)
    return carry_out("llama_repeats", parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
