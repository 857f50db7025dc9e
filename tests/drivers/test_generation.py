"""Real machines, real gRPC, real threads: the text stays the target's, whatever happens to the link."""

import threading
from dataclasses import replace

import pytest

from cloud_verifier.core.limits import SchedulerConfig
from common.acceptance import make_acceptance
from common.errors import UnavailableError
from common.messages import FinishReason, Open
from common.sampling import SamplingParams
from edge_client.core.effects import ChangeMode, Emit, Fallback, Mode, Preview, Withdraw
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from simulator.proxy import Hold, Link, both_ways, rtt
from tests.support.drafter_thread import DrafterThread
from tests.support.sleeping import SleepingChannel
from tests.support.tiny import EOS, complete, generation, running
from tests.worlds.models import TinyDrafter, TinyTarget, target_alone

pytestmark = pytest.mark.grpc

LONG = SamplingParams(max_tokens=120, ignore_eos=True, temperature=0.8, seed=11)


@pytest.mark.parametrize("policy", ["adaptive", "tree", "chain", "sync:4", "off"])
@pytest.mark.smoke
async def test_the_text_is_the_targets(policy: str) -> None:
    async with running() as system:
        run = await complete(system.address, LONG, make_policy(policy))
    assert run.session.text == target_alone((1, 2, 3), LONG, EOS)
    assert run.reason is FinishReason.LENGTH
    assert bool(run.session.stats.proposed) is (policy != "off")


@pytest.mark.parametrize("rule", ["rejection", "block", "specinfer", "spectr", "spectr-ot"])
async def test_drawn_drafts_travel_and_are_accepted(rule: str) -> None:
    async with running(step_time=0.01) as system:
        with DrafterThread(TinyDrafter(blend=0.0)) as drafts:
            async with VerifierChannel(system.address) as channel:
                run = generation(
                    channel, drafts, LONG, make_policy("sync:4"), acceptance=make_acceptance(rule)
                )
                tokens = [token async for emit in run for token in emit.tokens]
    assert len(tokens) == LONG.max_tokens
    assert run.session.stats.accepted > 60
    assert run.session.stats.target_steps < 60


@pytest.mark.smoke
async def test_a_cut_link_is_resumed_with_the_same_text() -> None:
    async with running(step_time=0.005) as system, Link.to(system.address, *rtt(10)) as link:
        with DrafterThread(TinyDrafter()) as drafts:
            async with VerifierChannel(str(link.address)) as channel:
                run = generation(channel, drafts, LONG)
                tokens: list[int] = []
                async for emit in run:
                    tokens += emit.tokens
                    if len(tokens) // 30 > run.session.stats.resumes:
                        link.cut()
    assert run.session.stats.resumes >= 2
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)


@pytest.mark.parametrize("asleep", [1, 2], ids=["at the start", "with text on the screen"])
async def test_a_device_that_sleeps_before_its_open_loses_no_text(asleep: int) -> None:
    async with (
        running(SchedulerConfig(open_timeout=0.2), step_time=0.005) as system,
        Link.to(system.address, *rtt(4)) as link,
        SleepingChannel(str(link.address), {asleep}) as channel,
    ):
        run = generation(channel, None, LONG, make_policy("off"))
        tokens = list[int]()
        async for emit in run:
            tokens += emit.tokens
            if len(tokens) >= 30 and run.session.stats.resumes == asleep - 2:
                link.cut()
        assert system.worker.scheduler.counters.num_refused == {"DEADLINE_EXCEEDED": 1}
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)


async def test_a_grammar_that_waits_too_long_for_its_turn_loses_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = threading.Event()
    check = TinyTarget.check_grammar

    def waiting(target: TinyTarget, request: Open) -> None:
        assert refused.wait(20)
        check(target, request)

    def on_open(number: int) -> None:
        if number == 2:
            refused.set()

    monkeypatch.setattr(TinyTarget, "check_grammar", waiting)
    sampling = replace(LONG, grammar="2")
    async with (
        running(SchedulerConfig(open_timeout=0.5)) as system,
        SleepingChannel(system.address, (), on_open) as channel,
    ):
        run = generation(channel, None, sampling, make_policy("off"))
        async for _ in run:
            pass
        assert system.worker.scheduler.counters.num_refused["DEADLINE_EXCEEDED"] >= 1
    assert run.session.text == target_alone((1, 2, 3), sampling, EOS)


async def test_while_the_link_is_down_the_drafts_own_guess_is_shown() -> None:
    """The link comes back when the guess has forty tokens; the text is the target's all the same."""
    async with running(step_time=0.005) as system, Link.to(system.address, *rtt(4)) as link:
        with DrafterThread(TinyDrafter()) as drafts:
            async with VerifierChannel(str(link.address)) as channel:
                run = generation(channel, drafts, LONG, patience=0.05, max_attempts=100)
                tokens, guess, modes = list[int](), list[int](), list[Mode]()
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
                        case ChangeMode():
                            modes.append(shown.standing.mode)
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)
    assert guess == []
    assert Mode.DEVICE_ONLY in modes
    assert modes[-1] is Mode.AHEAD


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
                        for toxic in both_ways(Hold()):
                            link.add_toxic(toxic)
                case ChangeMode() if shown.standing.mode is Mode.WAITING:
                    for name in frozen(link):
                        link.remove_toxic(name)
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)
    assert run.session.stats.resumes >= 1


def frozen(link: Link) -> list[str]:
    return [toxic.name for toxic in link.toxics if isinstance(toxic, Hold)]


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


async def test_a_verifier_that_is_not_there_ends_in_a_sentence() -> None:
    with DrafterThread(TinyDrafter()) as drafts:
        async with VerifierChannel("127.0.0.1:1") as channel:
            with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1 cannot be reached"):
                await channel.describe()
            run = generation(channel, drafts, LONG)
            with pytest.raises(UnavailableError):
                async for _ in run:
                    pass
