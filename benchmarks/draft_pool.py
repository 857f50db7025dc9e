"""What a draft model gives several sessions at once: rows a second through a pool, together and in turn.

    python -m benchmarks.draft_pool --threads 1 --json

Every session does what a generation does, without a verifier: a step asks about the best candidates of the
tip (`width` rows), the first of them is committed, and the next step is asked for in the callback of the one
before. *Together* all sessions draft at the same time, in one llama_decode a turn; *in turn* each drafts when
the one before has ended, which is all that a context for one session would allow. Prompts are evaluated
before the clock starts. `jain` is Jain's index of the rows that each session was given by when the first of
them ended. With --processor-time seconds are those that the process computed: another load changes them less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import ForerunError, UserError
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Reading, Reroot
from edge_client.core.effects import Expand, MoveTip, StartDrafter
from edge_client.draft_pool import DraftPool, Seat
from edge_client.draft_worker import Outcome
from edge_client.llama.runtime import LlamaRuntime
from edge_client.llama.settings import LlamaSettings

DEFAULT_DRAFT = Path(__file__).resolve().parent.parent / "demo_models" / "draft" / "draft-q8_0.gguf"
SESSIONS = (1, 2, 4, 8)
WIDTHS = (1, 4)


@dataclass(frozen=True)
class Pace:
    """Of so many sessions; the median of some rounds."""

    sessions: int
    width: int  # rows a step asks for
    together: float  # rows a second, all sessions
    in_turn: float
    jain: float

    @property
    def gain(self) -> float:
        return round(self.together / self.in_turn, 2)


class Session:
    """Drafts `num_steps` steps of `width` rows at a seat."""

    def __init__(self, seat: Seat, prompt: Sequence[int], width: int, num_steps: int) -> None:
        self.num_rows = 0
        self.ended = asyncio.Event()
        self.error: ForerunError | None = None
        self._seat = seat
        self._width = width
        self._num_steps = num_steps
        self._next_id = 1
        self._rows: tuple[DraftRow, ...] = (DraftRow(0, None, prompt[-1], len(prompt) - 1),)
        seat.submit(StartDrafter(tuple(prompt), 0, SamplingParams()))

    async def prepare(self) -> None:
        """Evaluate the prompt and its tip."""
        ready = asyncio.Event()

        def on_drafted(outcome: Outcome, _: Reading) -> None:
            self._grow(outcome)
            ready.set()

        self._seat.expand(Expand(self._rows), on_drafted)
        await ready.wait()
        if self.error is not None:
            raise self.error

    async def run(self) -> None:
        """All steps. Raises the `ForerunError` of the draft."""
        self._seat.expand(Expand(self._rows), self._on_drafted)
        await self.ended.wait()
        if self.error is not None:
            raise self.error

    def _on_drafted(self, outcome: Outcome, _: Reading) -> None:
        first, *others = self._rows
        self._seat.submit(MoveTip(Reroot(((first.id, first.token),), tuple(row.id for row in others))))
        self.num_rows += len(self._rows)
        self._grow(outcome)
        if self.num_rows >= self._width * self._num_steps or self.error is not None:
            self.ended.set()
        else:
            self._seat.expand(Expand(self._rows), self._on_drafted)

    def _grow(self, outcome: Outcome) -> None:
        """Rows for the best candidates of the first row, which is the tip now."""
        if isinstance(outcome, ForerunError):
            self.error = outcome
            return
        tip, ids = self._rows[0], range(self._next_id, self._next_id + self._width)
        self._next_id += self._width
        self._rows = tuple(
            DraftRow(node, tip.id, token, tip.position + 1)
            for node, token in zip(ids, outcome[0].tokens, strict=False)
        )


async def rows_a_second(
    runtime: LlamaRuntime, sessions: int, width: int, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Of sessions that draft together, and Jain's index when the first ended."""
    runtime.clear()
    async with DraftPool(runtime, sessions) as pool:
        made = [
            Session(pool.seat(), prompt_of(place, arguments.context, runtime), width, arguments.steps)
            for place in range(sessions)
        ]
        for each in made:
            await each.prepare()
        clock = time.process_time if arguments.processor_time else time.perf_counter
        began = clock()
        running = [asyncio.create_task(each.run()) for each in made]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        rows = [each.num_rows for each in made]
        await asyncio.gather(*running)
        seconds = clock() - began
    fairness = sum(rows) ** 2 / (len(rows) * sum(count**2 for count in rows))
    return sum(each.num_rows for each in made) / seconds, fairness


def prompt_of(place: int, size: int, runtime: LlamaRuntime) -> list[int]:
    """A text of its own for each session, so that nothing is shared."""
    return [(7 * each + 11 * place + 3) % runtime.num_vocab for each in range(size)]


async def measure(runtime: LlamaRuntime, sessions: int, width: int, arguments: argparse.Namespace) -> Pace:
    """Rounds of both, one after the other, so that a change of the machine's speed falls on both."""
    together, alone, fairness = [], [], []
    for _ in range(arguments.rounds):
        pace, fair = await rows_a_second(runtime, sessions, width, arguments)
        together.append(pace)
        fairness.append(fair)
        paces = [(await rows_a_second(runtime, 1, width, arguments))[0] for _ in range(sessions)]
        alone.append(sessions / sum(1 / pace for pace in paces))
    middle = arguments.rounds // 2
    return Pace(
        sessions,
        width,
        round(sorted(together)[middle]),
        round(sorted(alone)[middle]),
        round(min(fairness), 4),
    )


async def measure_all(arguments: argparse.Namespace) -> list[Pace]:
    """Every number of sessions and width on one loaded model."""
    cells = max(SESSIONS) * (arguments.context + arguments.steps + 64)
    settings = LlamaSettings(str(arguments.draft), n_ctx=cells, threads=arguments.threads)
    with LlamaRuntime(settings) as runtime:
        return [await measure(runtime, size, width, arguments) for width in WIDTHS for size in SESSIONS]


def main() -> None:
    """Parse, measure, print: a table, or with --json one array."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draft", default=DEFAULT_DRAFT, help="GGUF file")
    parser.add_argument("--context", type=int, default=256, help="tokens before the tree (256)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each session (200)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median is told (5)")
    parser.add_argument("--threads", type=int, default=0, help="of llama.cpp; 0 = one per processor")
    parser.add_argument("--processor-time", action="store_true", help="rows a second of the processor's time")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    arguments = parser.parse_args()
    try:
        paces = asyncio.run(measure_all(arguments))
    except UserError as error:
        parser.error(str(error))
    if arguments.json:
        print(json.dumps([asdict(each) | {"gain": each.gain} for each in paces], indent=1))
        return
    print("sessions  width  together rows/s  in turn rows/s  gain    jain")
    for each in paces:
        print(
            f"{each.sessions:>8} {each.width:>6} {each.together:>16.0f} {each.in_turn:>15.0f} "
            f"{each.gain:>5.2f} {each.jain:>7.4f}"
        )


if __name__ == "__main__":
    main()
