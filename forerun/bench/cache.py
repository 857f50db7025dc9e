"""The second turn of a chat: what it is worth that the verifier has seen the history before."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from common.errors import LocalError, UserError
from common.figures import rounded
from common.sampling import SamplingParams
from forerun.bench.job import OFF, Drafts, Job, TextRun
from forerun.bench.stage import Stage, StageSettings, Verifier
from forerun.bench.texts import Text

ROOM = 64
"""KV slots beside those of prompts and texts."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What is measured. Lengths in tokens."""

    target: str
    history: int = 1920  # of a chat before its second turn: what was said, the first answer among it
    answer: int = 32  # of each turn
    question: int = 32  # the user's second
    chats: int = 5
    step_floor_ms: float = 0.0
    threads: int = 1
    device: str = "cpu"
    pin: bool = True
    verifier: str = ""  # further options of both verifiers

    def __post_init__(self) -> None:
        for name in ("history", "answer", "question", "chats", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.history <= self.answer:
            raise UserError(f"a history of {self.history} tokens has no room for an answer of {self.answer}")

    @property
    def whole(self) -> int:
        """Tokens of a chat at its end."""
        return self.history + self.question + self.answer

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.answer, ignore_eos=True)

    @property
    def stage(self) -> StageSettings:
        """Slots for all chats: what was read once may be kept."""
        slots = (self.chats + 2) * (self.whole + ROOM)
        given = ["--model", self.target, "--slots", str(slots), "--max-sessions", "4", "--no-recall"]
        given += ["--threads", str(self.threads), "--device", self.device]
        given += ["--step-floor", str(self.step_floor_ms)] if self.step_floor_ms else []
        return StageSettings((*given, *shlex.split(self.verifier)), pin=self.pin)


@dataclass(frozen=True, slots=True)
class Chat:
    """Its first prompt and the user's second question."""

    number: int
    opening: tuple[int, ...]
    question: tuple[int, ...]


async def measure(
    plan: CachePlan, tokens: Sequence[Sequence[int]], progress: Callable[[int, int, str], None]
) -> dict[str, Any]:
    """Every chat on two verifiers: one sees both turns, the other one the second alone. They take turns, so
    that noise hits both alike, and write the same text. Raises `UserError` if the tokens do not make such
    chats."""
    chats = chats_of(plan, tokens)
    warm, cold, first = list[float](), list[float](), list[float]()
    different = 0
    async with Stage(plan.stage) as stage:
        other = await stage.start_verifier(plan.stage.verifier)
        for verifier in (stage.verifier, other):  # kernels are chosen, KV is allocated
            await _turn(plan, stage, verifier, Text(0, chats[-1].question))
        for place, chat in enumerate(chats):
            opening = await _turn(plan, stage, stage.verifier, Text(chat.number, chat.opening))
            second = Text(chat.number, (*chat.opening, *opening.tokens, *chat.question))
            seen = await _turn(plan, stage, stage.verifier, second)
            unseen = await _turn(plan, stage, other, second)
            first.append(opening.arrivals[0])
            warm.append(seen.arrivals[0])
            cold.append(unseen.arrivals[0])
            different += seen.tokens != unseen.tokens
            progress(place + 1, len(chats), f"chat {place + 1}: {_ms(cold[-1])} unseen, {_ms(warm[-1])} seen")
    return {
        "history_tokens": plan.history,
        "ttft_ms": {
            "first_turn": _ms_of(first),
            "second_turn_unseen": _ms_of(cold),
            "second_turn": _ms_of(warm),
        },
        "ttft_ratio": rounded(median(a / b for a, b in zip(cold, warm, strict=True))),
        "ttft_ms_by_chat": [[rounded(1e3 * a), rounded(1e3 * b)] for a, b in zip(cold, warm, strict=True)],
        "texts": len(chats),
        "texts_different": different,
    }


async def _turn(plan: CachePlan, stage: Stage, verifier: Verifier, text: Text) -> TextRun:
    await stage.learn([text])
    job = Job(verifier.address, (text.number,), Drafts(OFF), OFF, plan.sampling, tell_tokens=True)
    run = (await stage.run(job)).runs[0]
    if not run.finished:
        raise LocalError(f"a chat of {len(text.prompt)} tokens could not go on: {run.error}")
    return run


def chats_of(plan: CachePlan, tokens: Sequence[Sequence[int]]) -> list[Chat]:
    """Chats that share no beginning: all prompts laid end to end, each chat from another token of them on."""
    line = [token for prompt in tokens for token in prompt]
    length = plan.history - plan.answer
    step = max(1, len(line) // plan.chats)
    if plan.chats > len(line):
        raise UserError(f"the prompts have {len(line)} tokens, too few for {plan.chats} chats; give more")
    found = []
    for number in range(plan.chats):
        start = number * step
        turned = line[start:] + line[:start]
        whole = (turned * (-(-(length + plan.question) // len(turned))))[: length + plan.question]
        found.append(Chat(number, tuple(whole[:length]), tuple(whole[length:])))
    return found


def _ms_of(seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "p50": rounded(1e3 * median(seconds)),
        "least": rounded(1e3 * min(seconds)),
        "most": rounded(1e3 * max(seconds)),
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
