"""The sizes of the messages of real sessions: padded, all of a direction have one, which tells nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from common.privacy import Privacy
from common.sampling import SamplingParams
from common.wire.padding import DOWN_BYTES, LEAST_OPEN_BYTES, UP_BYTES
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import System, generation, running
from tests.worlds.models import TinyDrafter

pytestmark = pytest.mark.grpc

POLICIES = ("adaptive", "tree", "chain", "sync:4", "off")


@dataclass(frozen=True)
class CapturedText:
    """One text."""

    prompt: tuple[int, ...] = (1, 2, 3)
    temperature: float = 0.0
    policy: str = "tree"
    blend: float = 0.5  # of the draft: 0 is the target itself
    num_tokens: int = 24


@dataclass(slots=True)
class StreamSizes:
    """The sizes of the messages of one stream, bytes."""

    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)


class Tap:
    """Notes the sizes of all messages that a verifier receives and sends."""

    def __init__(self, system: System) -> None:
        self._talks = dict[int, StreamSizes]()
        monitor = system.worker.monitor
        monitor.note_received = lambda key, message, size: self._talk(key).up.append(size)  # type: ignore[method-assign]
        monitor.note_sent = lambda key, message, size: self._talk(key).down.append(size)  # type: ignore[method-assign]

    def _talk(self, key: int) -> StreamSizes:
        return self._talks.setdefault(key, StreamSizes())

    def talks(self) -> list[StreamSizes]:
        return [*self._talks.values()]


async def captured(texts: Sequence[CapturedText], **config: int) -> list[StreamSizes]:
    """What was seen of these texts, one after the other."""
    async with running(privacy=Privacy.PADDED) as system:
        tap = Tap(system)
        for number, text in enumerate(texts):
            sampling = SamplingParams(
                temperature=text.temperature, max_tokens=text.num_tokens, seed=number, ignore_eos=True
            )
            with DrafterThread(TinyDrafter(blend=text.blend)) as drafts:
                async with VerifierChannel(system.address) as channel:
                    policy = make_policy(text.policy)
                    run = generation(
                        channel, drafts, sampling, policy, text.prompt, privacy=Privacy.PADDED, **config
                    )
                    async for _ in run:
                        pass
                    assert len(run.session.text) == text.num_tokens
        return tap.talks()


def sizes(talks: Sequence[StreamSizes], direction: str) -> set[int]:
    return {size for talk in talks for size in getattr(talk, direction)[direction == "up" :]}


MANY = [
    CapturedText(
        (1 + number % 6,) * (1 + 7 * number), 0.3 * (number % 5), policy, 0.25 * (number % 4), 5 + 4 * number
    )
    for number in range(6)
    for policy in POLICIES
]


async def test_padded_messages_have_one_size_per_direction_whatever_the_text() -> None:
    talks = await captured(MANY)
    assert len(talks) == len(MANY) == 30
    assert sizes(talks, "up") == {UP_BYTES}
    assert sizes(talks, "down") == {DOWN_BYTES}
    assert {talk.up[0] for talk in talks} == {LEAST_OPEN_BYTES}


async def test_with_log_probabilities_there_is_one_size_too() -> None:
    talks = await captured(MANY[:5], logprobs=5)
    assert sizes(talks, "down") == {512}
