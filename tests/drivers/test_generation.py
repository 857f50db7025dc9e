"""Real machines, real gRPC, real threads: the text stays the target's, whatever happens to the link."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cloud_verifier.core.config import SchedulerConfig
from common.acceptance import AcceptanceRule, make_acceptance
from common.errors import CapacityError, LocalError, UnavailableError, UserError
from common.messages import FinishReason
from common.sampling import SamplingParams
from edge_client.channel import VerifierChannel
from edge_client.core.config import Fallback
from edge_client.core.drafter import DraftRow, Expansion
from edge_client.core.effects import ChangeMode, Emit, Preview, PreviewEnds, Withdraw
from edge_client.core.policies import Mode, make_policy
from edge_client.draft_worker import DraftWorker
from link import Link, Timeout, both_ways, rtt
from tests.drivers.tiny import EOS, complete, generation, running
from tests.worlds.models import TinyDrafter, target_alone

pytestmark = pytest.mark.grpc

LONG = SamplingParams(max_tokens=120, ignore_eos=True, temperature=0.8, seed=11)


@pytest.mark.parametrize("policy", ["tree", "chain", "sync:4", "off"])
async def test_the_text_is_the_targets(policy: str) -> None:
    async with running() as system:
        run = await complete(system.address, LONG, make_policy(policy))
    assert run.session.text == target_alone((1, 2, 3), LONG, EOS)
    assert run.reason is FinishReason.LENGTH


@pytest.mark.parametrize("rule", ["rejection", "block", "specinfer"])
async def test_drawn_drafts_travel_and_are_accepted(rule: str) -> None:
    async with running(step_time=0.01) as system:
        with DraftWorker(TinyDrafter(blend=0.0)) as drafts:
            async with VerifierChannel(system.address) as channel:
                run = generation(
                    channel, drafts, LONG, make_policy("sync:4"), acceptance=make_acceptance(rule)
                )
                tokens = [token async for emit in run for token in emit.tokens]
    assert len(tokens) == LONG.max_tokens
    assert run.session.stats.accepted > 60
    assert run.session.stats.target_steps < 60


async def test_a_lossy_rule_must_be_allowed_by_the_verifier() -> None:
    typical = make_acceptance("typical")
    async with running() as system, VerifierChannel(system.address) as channel:
        run = generation(channel, None, LONG, make_policy("off"), acceptance=typical)
        with pytest.raises(UserError, match="the lossy acceptance rule typical is not allowed"):
            async for _ in run:
                pass
    allowed = SchedulerConfig(rules=(AcceptanceRule.TYPICAL,))
    async with running(allowed) as system, VerifierChannel(system.address) as channel:
        run = generation(channel, None, LONG, make_policy("off"), acceptance=typical)
        tokens = [token async for emit in run for token in emit.tokens]
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS), "without drafts nothing is let pass"


async def test_sixteen_edges_share_one_verifier() -> None:
    samplings = [SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=s) for s in range(16)]
    async with running() as system:
        runs = await asyncio.gather(*(complete(system.address, sampling) for sampling in samplings))
    for run, sampling in zip(runs, samplings, strict=True):
        assert run.session.text == target_alone((1, 2, 3), sampling, EOS)


async def test_a_cut_link_is_resumed_with_the_same_text() -> None:
    async with running(step_time=0.005) as system, Link.to(system.address, *rtt(10)) as link:
        with DraftWorker(TinyDrafter()) as drafts:
            async with VerifierChannel(str(link.address)) as channel:
                run = generation(channel, drafts, LONG)
                tokens: list[int] = []
                async for emit in run:
                    tokens += emit.tokens
                    if len(tokens) // 30 > run.session.stats.resumes:
                        link.cut()
    assert run.session.stats.resumes >= 2
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)


async def test_while_the_link_is_down_the_drafts_own_guess_is_shown() -> None:
    """The link comes back when the guess has forty tokens; the text is the target's all the same."""
    async with running(step_time=0.005) as system, Link.to(system.address, *rtt(4)) as link:
        with DraftWorker(TinyDrafter()) as drafts:
            async with VerifierChannel(str(link.address)) as channel:
                run = generation(channel, drafts, LONG, patience=0.05, max_attempts=100)
                tokens, guess = list[int](), list[int]()
                async for shown in run.shown():
                    match shown:
                        case Emit():
                            tokens += shown.tokens
                            del guess[: len(shown.tokens)]
                            if len(tokens) >= 20 and not run.session.stats.resumes:
                                await link.disable()
                                link.cut()
                        case Preview():
                            guess += shown.tokens
                            if len(guess) >= 40:
                                await link.enable()
                        case Withdraw():
                            del guess[len(guess) - len(shown.tokens) :]
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)
    assert guess == []
    assert Mode.DEVICE_ONLY in [standing.mode for standing in run.modes]
    assert run.modes[-1].mode is Mode.AHEAD


async def test_a_guess_that_nobody_confirms_is_told_apart_from_the_text() -> None:
    with DraftWorker(TinyDrafter()) as drafts:
        async with VerifierChannel("127.0.0.1:1") as channel:
            run = generation(channel, drafts, LONG, patience=0.01, max_attempts=6)
            with pytest.raises(UnavailableError, match="6 reconnects in a row brought no text"):
                async for _ in run:
                    pass
    assert run.session.text == ()
    assert run.session.preview


async def test_who_is_to_fail_is_told_when_nobody_answers() -> None:
    async with VerifierChannel("127.0.0.1:1") as channel:
        run = generation(
            channel, None, LONG, make_policy("off"), fallback=Fallback.FAIL, patience=0.2, max_attempts=None
        )
        with pytest.raises(UnavailableError, match=r"no verifier has answered for 0\.\d s; the last said: "):
            async for _ in run:
                pass


async def test_who_waits_is_told_so_and_has_its_text_in_the_end() -> None:
    async with (
        running(step_time=0.005) as system,
        Link.to(system.address) as link,
        VerifierChannel(str(link.address)) as channel,
    ):
        run = generation(
            channel,
            None,
            LONG,
            make_policy("off"),
            fallback=Fallback.WAIT,
            patience=0.05,
            max_attempts=None,
        )
        tokens = list[int]()
        async for shown in run.shown():
            match shown:
                case Emit():
                    tokens += shown.tokens
                    if len(tokens) >= 20 and not run.session.stats.resumes:
                        await link.disable()
                        link.cut()
                case ChangeMode() if shown.standing.mode is Mode.WAITING:
                    await link.enable()
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)
    modes = [standing.mode for standing in run.modes]
    assert modes == [Mode.WAITING, Mode.AHEAD] * (len(modes) // 2)  # more than once, on a busy machine
    assert modes


async def test_a_draft_that_has_written_the_text_to_its_end_says_so_and_is_put_right() -> None:
    """Nobody is there until the guess is finished; then the target has the last word."""
    async with running(step_time=0.002) as system, Link.to(system.address) as link:
        await link.disable()
        with DraftWorker(TinyDrafter()) as drafts:
            async with VerifierChannel(str(link.address)) as channel:
                run = generation(
                    channel, drafts, LONG, patience=0.05, max_attempts=None, max_preview=None, max_backoff=0.1
                )
                tokens, ends = list[int](), list[PreviewEnds]()
                async for shown in run.shown():
                    match shown:
                        case Emit():
                            tokens += shown.tokens
                        case PreviewEnds():
                            ends.append(shown)
                            await link.enable()
    assert ends[0] == PreviewEnds(2 + LONG.max_tokens, FinishReason.LENGTH)
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)


async def test_a_text_is_resumed_where_it_was_left() -> None:
    text = target_alone((1, 2, 3), LONG, EOS)
    async with running() as system, VerifierChannel(system.address) as channel:
        with DraftWorker(TinyDrafter()) as drafts:
            run = generation(channel, drafts, LONG, committed=text[:50])
            emitted = [token async for emit in run for token in emit.tokens]
    assert tuple(emitted) == text[50:]
    assert run.session.text == text


async def test_a_stream_that_falls_silent_is_found_by_asking() -> None:
    """The link swallows everything, new connections too, until the loss has been noticed."""
    async with (
        running(step_time=0.005) as system,
        Link.to(system.address) as link,
        VerifierChannel(str(link.address)) as channel,
    ):
        run = generation(channel, None, LONG, make_policy("off"), patience=0.01, fallback=Fallback.WAIT)
        tokens = list[int]()
        async for shown in run.shown():
            match shown:
                case Emit():
                    tokens += shown.tokens
                    if len(tokens) >= 20 and not run.session.stats.resumes and not frozen(link):
                        for toxic in both_ways(Timeout(0)):
                            link.add_toxic(toxic)
                case ChangeMode() if shown.standing.mode is Mode.WAITING:
                    for name in frozen(link):
                        link.remove_toxic(name)
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)
    assert run.session.stats.resumes >= 1


def frozen(link: Link) -> list[str]:
    return [toxic.name for toxic in link.toxics if isinstance(toxic, Timeout)]


async def test_an_edge_that_goes_away_leaves_nothing_behind() -> None:
    endless = SamplingParams(max_tokens=400, ignore_eos=True)
    async with running(step_time=0.002) as system:
        async with VerifierChannel(system.address) as channel:
            run = generation(channel, None, endless, make_policy("off"))
            async for _ in run:
                break
        await system.worker.wait_until_gone()
        again = await complete(system.address, SamplingParams(max_tokens=5, ignore_eos=True))
    assert len(again.session.text) == 5


async def test_a_broken_drafter_costs_speed_and_not_the_text() -> None:
    class Broken(TinyDrafter):
        def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
            raise RuntimeError("out of order")

    async with running() as system, VerifierChannel(system.address) as channel:
        with DraftWorker(Broken()) as drafts:
            for policy in ("tree", "sync:4"):
                run = generation(channel, drafts, LONG, make_policy(policy))
                async for _ in run:
                    pass
                assert run.session.text == target_alone((1, 2, 3), LONG, EOS)


async def test_a_verifier_that_is_not_there_ends_in_a_sentence() -> None:
    with DraftWorker(TinyDrafter()) as drafts:
        async with VerifierChannel("127.0.0.1:1") as channel:
            with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
                await channel.describe()
            run = generation(channel, drafts, LONG)
            with pytest.raises(UnavailableError):
                async for _ in run:
                    pass


async def test_a_full_verifier_says_so_and_takes_the_next_when_it_can() -> None:
    from cloud_verifier.core.config import SchedulerConfig

    async with running(SchedulerConfig(max_sessions=1), step_time=0.002) as system:
        first, second = await asyncio.gather(*(complete(system.address, LONG) for _ in range(2)))
    assert first.session.text == second.session.text == target_alone((1, 2, 3), LONG, EOS)
    assert first.session.stats.resumes + second.session.stats.resumes >= 1


async def test_a_drained_verifier_tells_its_sessions() -> None:
    async with running(step_time=0.005) as system, VerifierChannel(system.address) as channel:
        run = generation(channel, None, replace(LONG, max_tokens=500), make_policy("off"))
        with pytest.raises((UnavailableError, CapacityError)):  # noqa: PT012 - the drain belongs in the loop
            async for _ in run:
                if not system.worker.scheduler.draining and run.session.stats.committed >= 3:
                    system.worker.drain(0.1)
        assert run.session.stats.resumes >= 1


async def test_a_session_is_refused_for_the_users_fault_without_a_retry() -> None:
    too_long = SamplingParams(max_tokens=100_000)
    async with running() as system, VerifierChannel(system.address) as channel:
        run = generation(channel, None, too_long, make_policy("off"))
        with pytest.raises(UserError, match="exceed the target's 512 positions"):
            async for _ in run:
                pass
    assert run.session.stats.resumes == 0


def test_a_draft_step_nobody_asked_for_is_our_defect() -> None:
    from edge_client.core.config import SessionConfig
    from edge_client.core.session import EdgeSession
    from tests.drivers.tiny import VOCABULARY

    session = EdgeSession(SessionConfig((1,), LONG, VOCABULARY.fingerprint), make_policy("tree"))
    with pytest.raises(LocalError, match="had not been asked for"):
        session.on_drafted([], 0.0)
