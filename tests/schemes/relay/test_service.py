"""Three real machines, real gRPC, two emulated links: the text is the target's, whatever happens to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from common.acceptance import make_acceptance
from common.errors import CapacityError, UnavailableError, UserError
from common.messages import FinishReason, Open
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire.codec import encode_request
from edge_client.core.draft_times import DraftTimes
from edge_client.core.effects import Drafted, Expand, MoveTip, StartDrafter
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from schemes.relay import service
from schemes.relay.service import CallerStreams, RelayServer, RelayService, RelaySettings
from simulator.proxy import Link, rtt
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import EOS, VOCABULARY, System, generation, running
from tests.worlds.models import TinyDrafter, target_alone

pytestmark = pytest.mark.grpc

LONG = SamplingParams(max_tokens=120, ignore_eos=True, temperature=0.8, seed=11)


@dataclass
class Seat:
    """A seat at a tiny middle model."""

    thread: DrafterThread
    middle: Middle

    def submit(self, effect: StartDrafter | MoveTip) -> None:
        self.thread.submit(effect)

    def expand(self, effect: Expand, on_drafted: Drafted) -> None:
        self.thread.expand(effect, on_drafted)

    def num_kept(self, tokens: Sequence[int]) -> int:
        return 0

    def release(self) -> None:
        self.middle.free.append(self)
        self.middle.all_free.set()


@dataclass
class Middle:
    """A tiny middle model with one seat or none. A `DraftSource`."""

    free: list[Seat]
    all_free: asyncio.Event = field(default_factory=asyncio.Event)
    pace: DraftTimes = field(default_factory=DraftTimes)

    async def prepare(self, grammar: str) -> None: ...

    async def acquire(self, prompt: Sequence[int]) -> Seat:
        if not self.free:
            raise CapacityError("no seat")
        self.all_free.clear()
        return self.free.pop()


@dataclass
class Stage:
    """A verifier, a relay, and the links before each of them."""

    system: System
    near: Link
    far: Link
    middle: Middle
    service: RelayService

    async def write(self, policy: str = "adaptive", sampling: SamplingParams = LONG) -> Generation:
        with DrafterThread(TinyDrafter()) as drafts:
            async with VerifierChannel(str(self.near.address)) as channel:
                run = generation(channel, drafts, sampling, make_policy(policy))
                async for _ in run:
                    pass
        return run


@contextlib.asynccontextmanager
async def staged(
    *, has_seat: bool = True, tenant_key: str = "", forwards: bool = True
) -> AsyncIterator[Stage]:
    async with contextlib.AsyncExitStack() as stack:
        system = await stack.enter_async_context(running(step_time=0.005, tenant_key=tenant_key))
        far = await stack.enter_async_context(Link.to(system.address, *rtt(20)))
        channel = await stack.enter_async_context(VerifierChannel(str(far.address)))
        middle = Middle([])
        middle.all_free.set()
        if has_seat:
            middle.free.append(Seat(stack.enter_context(DrafterThread(TinyDrafter(blend=0.1))), middle))
        first = RelayService(channel, middle, VOCABULARY, RelaySettings(forwards))
        server = await stack.enter_async_context(RelayServer(first, "127.0.0.1:0"))
        near = await stack.enter_async_context(Link.to(f"127.0.0.1:{server.port}", *rtt(4)))
        yield Stage(system, near, far, middle, first)
        await system.worker.wait_until_gone()
        async with asyncio.timeout(
            10
        ):  # each seat is given back, soon after the verifier has forgotten its text
            await middle.all_free.wait()


@pytest.mark.parametrize("policy", ["adaptive", "tree", "sync:4", "off"])
@pytest.mark.smoke
async def test_the_text_is_the_remote_targets(policy: str) -> None:
    async with staged() as stage:
        run = await stage.write(policy)
    assert run.session.text == target_alone((1, 2, 3), LONG, EOS)
    assert run.reason is FinishReason.LENGTH
    assert run.session.stats.target_steps < LONG.max_tokens, (
        "the middle model drafts, whatever the device does"
    )


@pytest.mark.parametrize("which", ["near", "far"])
async def test_a_cut_link_is_resumed_with_the_same_text(which: str) -> None:
    async with staged() as stage:
        link: Link = getattr(stage, which)
        with DrafterThread(TinyDrafter()) as drafts:
            async with VerifierChannel(str(stage.near.address)) as channel:
                run = generation(channel, drafts, LONG)
                tokens, cuts = list[int](), 0
                async for emit in run:
                    tokens += emit.tokens
                    if len(tokens) // 40 > cuts:
                        cuts += 1
                        link.cut()
    assert cuts >= 2
    assert tuple(tokens) == target_alone((1, 2, 3), LONG, EOS)


async def test_a_text_without_a_seat_passes_without_the_middle_model() -> None:
    async with staged(has_seat=False) as stage:
        run = await stage.write()
    assert run.session.text == target_alone((1, 2, 3), LONG, EOS)


async def test_a_device_sees_the_verifier_behind_and_only_the_rule_that_a_relay_knows() -> None:
    async with staged() as stage, VerifierChannel(str(stage.near.address)) as channel:
        found = await channel.describe(include_vocabulary=True)
        assert found.fingerprint == VOCABULARY.fingerprint
        assert [rule.title for rule in found.acceptance_rules] in ([], ["coupled"])
        run = generation(channel, None, LONG, acceptance=make_acceptance("rejection"))
        with pytest.raises(UserError, match="coupled only"):
            async for _ in run:
                pass


async def test_an_edge_that_goes_away_leaves_nothing_behind() -> None:
    async with staged() as stage:
        async with VerifierChannel(str(stage.near.address)) as channel:
            async for _ in generation(channel, None, SamplingParams(max_tokens=400, ignore_eos=True)):
                break
        await stage.system.worker.wait_until_gone()


class Caller:
    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


async def open_and_never_close(sampling: SamplingParams) -> AsyncIterator[pb.SessionRequest]:
    yield encode_request(Open((1, 2, 3), sampling, VOCABULARY.fingerprint))
    await asyncio.Event().wait()


async def test_a_device_that_reads_slowly_holds_no_seat_longer_than_its_text() -> None:
    async with staged() as stage:
        answers = stage.service.Session(open_and_never_close(LONG), Caller())  # type: ignore[arg-type]
        assert (await anext(answers)).HasField("opened")
        async with asyncio.timeout(10):
            await stage.middle.all_free.wait()
        *_, last = [answer async for answer in answers]
        assert last.HasField("finish")


async def test_the_text_of_a_device_that_reads_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STALL_TIME", 0.0)
    long = SamplingParams(max_tokens=480, ignore_eos=True)
    async with staged() as stage:
        answers = stage.service.Session(open_and_never_close(long), Caller())  # type: ignore[arg-type]
        assert (await anext(answers)).HasField("opened")
        await stage.middle.all_free.wait()
        with pytest.raises(UnavailableError, match="not read"):
            _ = [answer async for answer in answers]


@pytest.mark.parametrize("forwards", [True, False])
async def test_a_callers_token_goes_on_if_the_relay_forwards_tokens(forwards: bool) -> None:
    tenants = set[str]()
    async with (
        staged(tenant_key="authorization", forwards=forwards) as stage,
        VerifierChannel(str(stage.near.address)) as channel,
    ):
        run = generation(CallerStreams(channel, (("authorization", "acme"),)), None, LONG)
        async for _ in run:
            tenants |= {each.tenant for each in stage.system.worker.scheduler.sessions.values()}
    assert tenants == {"acme" if forwards else ""}
    assert run.session.text == target_alone((1, 2, 3), LONG, EOS)
