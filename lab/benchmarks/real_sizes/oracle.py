"""Runs a verifier whose target knows its text, to stand for a GPU: its step takes equal time for few rows.

    python -m lab.benchmarks.real_sizes.oracle --model FOLDER/target --texts FOLDER/texts --step 60

Everything but the target is `forerun verify`: scheduler, server, wire and options. A choice is a function of
the tokens before it, as a model's is. After a known text, the choice is that text's next token.
After anything else the choice is some token that depends on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cloud_verifier.core.engine_protocol import StepItem, StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.core.limits import CPU_SLOTS
from cloud_verifier.engine.model.checkpoint import describe
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.server.serving import serve
from common.llama.files import is_gguf
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.noise import noise_output
from common.wire.describe import TokenTable
from forerun.commands import verify
from lab.benchmarks.real_sizes.pair import PairText, read_text
from training.options import ms

BEFORE = 0
"""The state before a prompt's first token."""

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 16)  # rows whose times a scheduler is told

LAST = 3e-4
"""Seconds at the end of a step that are waited for by looking at the clock: sleeping is less exact."""


class OracleEngine(TargetEngine):
    """Implements `TargetEngine`; a step takes `step_time`, `prompt_row_time` per row without a choice, and
    `row_time` per choice beyond the first.

    In place of keys and values a slot holds one number that depends on all tokens up to its own.
    """

    def __init__(
        self,
        info: TargetInfo,
        texts: Iterable[PairText],
        step_time: float,
        prompt_row_time: float = 0.0,
        row_time: float = 0.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # As the engine of GGUF targets, which measures its rows; other engines know nothing of theirs.
        times = tuple((rows, step_time + (rows - 1) * row_time) for rows in WIDTHS) if row_time else ()
        self.info = replace(info, row_times=times)
        self._step_time, self._row_time = step_time, row_time
        self._prompt_row_time = prompt_row_time
        self._clock = clock
        self._sleep = sleep
        self._states = [BEFORE] * info.num_slots
        self._next: dict[tuple[int, float, int], int] = {}
        for text in texts:
            self._learn(text)

    def evaluate(self, plan: StepPlan) -> StepResult:
        num_silent = plan.num_rows - plan.num_outputs
        end_at = self._clock() + self._step_time + num_silent * self._prompt_row_time
        end_at += max(0, plan.num_outputs - 1) * self._row_time
        choices = tuple(self._choices(item) for item in plan.items)
        while (rest := end_at - self._clock()) > 0.0:
            self._sleep(rest - LAST if rest > 2 * LAST else 0.0)
        return StepResult(choices, tuple(np.ones(len(each), np.float32) for each in choices))

    def _choices(self, item: StepItem) -> np.ndarray:
        before = self._states[item.prefix_slots[-1]] if len(item.prefix_slots) else BEFORE
        states: list[int] = []
        rows = zip(item.tokens.tolist(), item.parents.tolist(), item.slots.tolist(), strict=True)
        for token, parent, slot in rows:
            states.append(noise_output(states[parent] if parent >= 0 else before, token))
            self._states[slot] = states[-1]
        temperature, seed = item.sampling.temperature, item.sampling.seed
        chosen = (self._next.get((states[row], temperature, seed), -1) for row in item.outputs)
        pairs = zip(chosen, item.outputs, strict=True)
        return np.array([self._wrong(states[row]) if token < 0 else token for token, row in pairs], np.int32)

    def _wrong(self, state: int) -> int:
        """Some token that ends no text."""
        token = state % self.info.vocab_size
        while token in self.info.eos_token_ids:
            token = (token + 1) % self.info.vocab_size
        return token

    def _learn(self, text: PairText) -> None:
        state = BEFORE
        whole = text.prompt + text.tokens
        for place, token in enumerate(whole[:-1], 1):
            state = noise_output(state, token)
            if place >= len(text.prompt):
                self._next[state, text.temperature, text.seed] = whole[place]


def describe_target(path: str, num_slots: int) -> tuple[TargetInfo, TokenTable]:
    """Return what edges must know of a folder or a GGUF file, and its token table. Raises `UserError`."""
    if not is_gguf(path):
        return describe(path, num_slots)
    with LlamaRuntime(LlamaSettings(path, n_ctx=512)) as runtime:
        return LlamaEngine(runtime, num_slots, name=Path(path).stem).info, tuple(runtime.token_table())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="forerun verify with a target that knows its text")
    verify.add_options(parser)
    option = parser.add_argument
    option("--texts", type=Path, required=True, metavar="FOLDER", help="folder of the pair's texts")
    option("--step", type=ms, required=True, metavar="MS", help="time of every step")
    option("--prompt-row", type=ms, default=0.0, metavar="MS", help="time per prompt row (%(default)s)")
    option("--row", type=ms, default=0.0, metavar="MS", help="time per further row (%(default)s)")
    parser.set_defaults(log_level="warning")
    options = parser.parse_args(arguments)
    config = verify.config_of(options)
    verify.check(config)
    info, table = describe_target(config.target.path, config.target.slots or CPU_SLOTS)
    texts = [read_text(path) for path in sorted(options.texts.glob("*.json"))]
    engine = OracleEngine(info, texts, options.step, options.prompt_row, options.row)
    with verify.logged(config):
        asyncio.run(serve(config, engine, table, verify.announcer(config)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
