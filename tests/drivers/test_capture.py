"""What somebody on the wire sees of real sessions: with padded frames one size per direction, which tells
nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from benchmarks.tap import Talk, Tap
from benchmarks.telling import accuracy, of_sizes
from common.acceptance import make_acceptance
from common.errors import UserError
from common.privacy import Privacy, stricter
from common.rpc.frames import DOWN_BYTES, LEAST_OPEN_BYTES, STRICT_DOWN, STRICT_UP, UP_BYTES
from common.sampling import SamplingParams
from edge_client.channel import VerifierChannel
from edge_client.core.policies import make_policy
from edge_client.draft_worker import DraftWorker
from edge_client.generation import Generation
from tests.drivers.tiny import generation, running
from tests.worlds.models import TinyDrafter

pytestmark = pytest.mark.grpc

POLICIES = ("adaptive", "tree", "chain", "sync:4", "off")


@dataclass(frozen=True)
class Asked:
    """One text."""

    prompt: tuple[int, ...] = (1, 2, 3)
    temperature: float = 0.0
    policy: str = "tree"
    blend: float = 0.5  # of the draft: 0 is the target itself
    num_tokens: int = 24


async def captured(texts: Sequence[Asked], privacy: Privacy, **config: int) -> list[Talk]:
    """What was seen of these texts, one after the other."""
    async with running(privacy=privacy) as system, Tap(system.address) as tap:
        for number, asked in enumerate(texts):
            sampling = SamplingParams(
                temperature=asked.temperature, max_tokens=asked.num_tokens, seed=number, ignore_eos=True
            )
            with DraftWorker(TinyDrafter(blend=asked.blend)) as drafts:
                async with VerifierChannel(tap.address) as channel:
                    run = generation(
                        channel,
                        drafts,
                        sampling,
                        make_policy(asked.policy),
                        asked.prompt,
                        privacy=privacy,
                        **config,
                    )
                    async for _ in run:
                        pass
                    assert len(run.session.text) == asked.num_tokens
        return tap.talks()


def sizes(talks: Sequence[Talk], direction: str) -> set[int]:
    return {size for talk in talks for _, size in getattr(talk, direction)[direction == "up" :]}


MANY = [
    Asked(
        (1 + number % 6,) * (1 + 7 * number), 0.3 * (number % 5), policy, 0.25 * (number % 4), 5 + 4 * number
    )
    for number in range(6)
    for policy in POLICIES
]


async def test_padded_frames_have_one_size_per_direction_whatever_the_text() -> None:
    talks = await captured(MANY, Privacy.PADDED)
    assert len(talks) == len(MANY) == 30
    assert sizes(talks, "up") == {UP_BYTES}
    assert sizes(talks, "down") == {DOWN_BYTES}
    assert {talk.up[0][1] for talk in talks} == {LEAST_OPEN_BYTES}


async def test_off_shows_how_long_drafts_and_commits_are() -> None:
    talks = await captured(MANY[:10], Privacy.OFF)
    assert len(sizes(talks, "up")) > 5
    assert len(sizes(talks, "down")) > 5


async def test_with_log_probabilities_there_is_one_size_too() -> None:
    talks = await captured(MANY[:5], Privacy.PADDED, logprobs=5)
    assert sizes(talks, "down") == {512}


KINDS = {"foreseen": Asked(policy="sync:4", blend=0.0), "hard": Asked(policy="sync:4", blend=1.0)}


async def traces(privacy: Privacy) -> list[tuple[str, list[float]]]:
    """Of two kinds of texts: those that the draft knows and those that it does not."""
    order = [kind for _ in range(10) for kind in KINDS]
    talks = await captured([KINDS[kind] for kind in order], privacy)
    return [(kind, of_sizes(talk)) for kind, talk in zip(order, talks, strict=True)]


async def test_who_sees_sizes_tells_texts_apart_and_with_padding_does_not() -> None:
    assert accuracy(await traces(Privacy.OFF)) > 0.9
    assert accuracy(await traces(Privacy.PADDED)) == pytest.approx(9 / 19)  # one of the others, at random


async def test_drawn_drafts_fill_their_larger_frames() -> None:
    """A session of another rule has another size, and one all the same."""
    async with running() as system, Tap(system.address) as tap:
        with DraftWorker(TinyDrafter()) as drafts:
            async with VerifierChannel(tap.address) as channel:
                run = generation(
                    channel,
                    drafts,
                    SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True),
                    make_policy("sync:4"),
                    privacy=Privacy.PADDED,
                    acceptance=make_acceptance("rejection"),
                )
                async for _ in run:
                    pass
        (talk,) = tap.talks()
    assert {size for _, size in talk.up[1:]} == {1024}


# negotiation over the real wire -----------------------------------------------------------------------------


async def written(asked: Privacy | None, demanded: Privacy) -> tuple[Generation, Talk]:
    async with running(privacy=demanded) as system, Tap(system.address) as tap:
        with DraftWorker(TinyDrafter()) as drafts:
            async with VerifierChannel(tap.address) as channel:
                run = generation(
                    channel, drafts, SamplingParams(max_tokens=12, ignore_eos=True), privacy=asked
                )
                async for _ in run:
                    pass
        (talk,) = tap.talks()
    return run, talk


@pytest.mark.parametrize("asked", Privacy)
@pytest.mark.parametrize("demanded", Privacy)
async def test_every_two_levels_write_the_same_text(asked: Privacy, demanded: Privacy) -> None:
    run, talk = await written(asked, demanded)
    assert len(run.session.text) == 12
    held = stricter(asked, demanded)
    if held is Privacy.PADDED:
        assert {size for _, size in talk.down} == {DOWN_BYTES}
    if held is Privacy.STRICT:
        assert {size for _, size in talk.down} == {STRICT_DOWN * DOWN_BYTES}
    if held is asked is not Privacy.OFF:  # from the first frame on, not only after `Opened`
        up = UP_BYTES * (STRICT_UP if held is Privacy.STRICT else 1)
        assert {size for _, size in talk.up[1:]} == {up}


async def test_an_edge_that_does_not_know_privacy_is_served_with_frames_of_one_size() -> None:
    run, talk = await written(None, Privacy.PADDED)
    assert len(run.session.text) == 12
    assert {size for _, size in talk.down} == {DOWN_BYTES}
    assert len({size for _, size in talk.up}) > 2


async def test_one_that_does_not_is_refused_where_strict_is_a_must() -> None:
    with pytest.raises(UserError, match="this edge does not know; update the edge"):
        await written(None, Privacy.STRICT)
