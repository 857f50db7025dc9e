"""The sizes of the messages of real sessions: padded, all of a direction have one, which tells nothing."""

from collections import defaultdict

import pytest

from common.privacy import Privacy
from common.sampling import SamplingParams
from common.wire.padding import DOWN_BYTES, LEAST_OPEN_BYTES, UP_BYTES
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import generation, running
from tests.worlds.models import TinyDrafter

pytestmark = pytest.mark.grpc

POLICIES = ("adaptive", "tree", "chain", "sync:4", "off")

Sizes = dict[int, list[int]]
"""Bytes of each message of a direction, by stream."""


async def sizes_of_texts(num_texts: int) -> tuple[Sizes, Sizes]:
    """Write texts of several policies, lengths, temperatures and drafts. Return the sizes of what the
    verifier has received and sent."""
    up, down = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    async with running(privacy=Privacy.PADDED) as system, VerifierChannel(system.address) as channel:
        monitor = system.worker.monitor
        monitor.note_received = lambda key, message, size: up[key].append(size)  # type: ignore[method-assign]
        monitor.note_sent = lambda key, message, size: down[key].append(size)  # type: ignore[method-assign]
        for number in range(num_texts):
            prompt, count = (1 + number % 6,) * (1 + 4 * number), 5 + 2 * number
            sampling = SamplingParams(0.3 * (number % 3), max_tokens=count, seed=number, ignore_eos=True)
            with DrafterThread(TinyDrafter(blend=0.25 * (number % 4))) as drafts:
                policy = make_policy(POLICIES[number % len(POLICIES)])
                run = generation(channel, drafts, sampling, policy, prompt, privacy=Privacy.PADDED)
                async for _ in run:
                    pass
            assert len(run.session.text) == count
    return up, down


async def test_padded_messages_have_one_size_per_direction_whatever_the_text() -> None:
    up, down = await sizes_of_texts(10)
    assert len(up) == len(down) == 10
    assert {sizes[0] for sizes in up.values()} == {LEAST_OPEN_BYTES}
    assert {size for sizes in up.values() for size in sizes[1:]} == {UP_BYTES}
    assert {size for sizes in down.values() for size in sizes} == {DOWN_BYTES}
