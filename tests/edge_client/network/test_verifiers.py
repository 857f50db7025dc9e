"""Laws of several verifiers, over real connections: no session is lost with one of them, and no other
moves."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import pytest

from cloud_verifier.core.limits import SchedulerConfig
from common.errors import PeerError, UnavailableError, UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from common.wire.describe import Description, VerifierLoad, encode_description
from common.wire.service import add_service
from edge_client.core.effects import Fallback, Preview
from edge_client.core.policies import make_policy
from edge_client.core.verifier_choice import VerifierCandidate, choose
from edge_client.network import verifiers as module
from edge_client.network.addresses import VerifierAddress, parse_address
from edge_client.network.generation import Generation
from edge_client.network.verifiers import Verifiers
from simulator.proxy import Hold, Link, both_ways
from simulator.proxy.toxics import UnknownToxicError
from tests import wording
from tests.edge_client.odd_verifier import odd_verifier
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import EOS, VOCABULARY, System, generation, running
from tests.worlds.models import TinyDrafter, target_alone

pytestmark = pytest.mark.grpc

LONG = SamplingParams(max_tokens=150, ignore_eos=True, temperature=0.8, seed=11)
TEXT = target_alone((1, 2, 3), LONG, EOS)


@pytest.fixture(autouse=True)
def equally_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is while they are measured."""
    monkeypatch.setattr("edge_client.core.verifier_choice.NEAR", 60.0)
    monkeypatch.setattr("edge_client.core.verifier_choice.FAST_SHARE", 1e9)


def sessions_of(*addresses: str) -> list[str]:
    """Three ids that are at home at each, in turn: ports, and so homes, are others in every run."""
    candidates = [VerifierCandidate(address) for address in addresses]
    found: dict[str, list[str]] = {address: [] for address in addresses}
    for number in itertools.count():
        home = choose(f"session-{number}", candidates, ())
        assert home is not None
        found[home.name].append(f"session-{number}")
        if min(map(len, found.values())) >= 3:
            return [name for three in zip(*found.values(), strict=False) for name in three][: 3 * len(found)]
    raise AssertionError


@contextlib.asynccontextmanager
async def several(count: int, step_time: float = 0.003) -> AsyncIterator[tuple[list[System], list[Link]]]:
    """So many verifiers, each behind a link of its own."""
    async with contextlib.AsyncExitStack() as stack:
        systems = [await stack.enter_async_context(running(step_time=step_time)) for _ in range(count)]
        links = [await stack.enter_async_context(Link.to(system.address)) for system in systems]
        yield systems, links


async def until(condition: Callable[[], bool], pool: Verifiers) -> None:
    """Woken by the pool's own news, and looked at no oftener."""
    changed = asyncio.Event()
    stop = pool.listen(changed.set)
    while not condition():
        await changed.wait()
        changed.clear()
    stop()


async def all_ready(pool: Verifiers) -> None:
    await until(lambda: set(health(pool)) == {"ready"}, pool)


def health(pool: Verifiers) -> list[str]:
    return [status.health.value for status in pool.snapshot()]


@contextlib.asynccontextmanager
async def pool_of(count: int) -> AsyncIterator[tuple[Verifiers, list[System], list[Link]]]:
    """A pool of so many, all ready."""
    async with several(count) as (systems, links), Verifiers([str(link.address) for link in links]) as pool:
        await all_ready(pool)
        yield pool, systems, links


async def written(
    pool: Verifiers, session_id: str, happens: Callable[[str], object] = lambda address: None, **config: Any
) -> tuple[Generation, list[str]]:
    """A text over the pool, and each stream's address. At 20 tokens something `happens`, once."""
    route, places, is_over = pool.route(session_id), list[str](), False
    run = generation(
        route, None, LONG, make_policy("off"), session_id=session_id, max_attempts=None, **config
    )
    async for _ in run:
        if not places or places[-1] != route.address:
            places.append(route.address)
        if not is_over and len(run.session.text) >= 20:
            is_over = True
            happens(route.address)
    return run, places


def freezing(links: list[Link]) -> Callable[[str], None]:
    """A link that swallows everything resets nothing: only silence and an unanswered question tell."""

    def freeze(address: str) -> None:
        (link,) = [each for each in links if str(each.address) == address]
        for toxic in both_ways(Hold()):
            link.add_toxic(toxic)

    return freeze


async def test_one_that_is_cut_off_in_mid_text_moves_its_own_sessions_only() -> None:
    async with pool_of(2) as (pool, _, links):
        gone, left = (str(link.address) for link in links)
        tasks = list[asyncio.Task[None]]()

        async def cut() -> None:
            await links[0].disable()
            links[0].cut()

        def begin(address: str) -> None:
            tasks.append(asyncio.create_task(cut()))

        first, *others = sessions_of(gone, left)
        runs = await asyncio.gather(written(pool, first, begin), *(written(pool, name) for name in others))
    assert {places[0] for _, places in runs} == {gone, left}, "both had some"
    for run, places in runs:
        assert run.session.text == TEXT
        assert places in ([left], [gone, left])
        assert run.session.stats.resumes == len(places) - 1


async def test_a_drain_moves_sessions_at_once_and_none_fails() -> None:
    async with pool_of(2) as (pool, systems, links):
        gone, left = (str(link.address) for link in links)
        first, *others = sessions_of(gone, left)
        runs = await asyncio.gather(
            written(pool, first, lambda address: systems[0].worker.drain(5.0)),
            *(written(pool, name) for name in others),
        )
        late, places = await written(pool, first)
        assert "draining" in health(pool)
    assert places == [left], "who comes later is not sent there"
    for run, where in [*runs, (late, places)]:
        assert run.session.text == TEXT
        assert where in ([left], [gone, left])
        assert run.session.stats.resumes <= 1


async def test_a_verifier_that_freezes_is_left_for_the_other() -> None:
    async with pool_of(2) as (pool, _, links):
        run, places = await written(pool, "a", freezing(links))
    assert run.session.text == TEXT
    assert len(places) == 2
    assert run.session.stats.resumes == 1


async def test_the_only_verifier_freezes_and_thaws() -> None:
    """Its connection is given up for another; what the old one still holds is void."""
    async with pool_of(1) as (pool, _, links):

        def thaw() -> None:
            for name in ("hold_upstream", "hold_downstream"):
                with contextlib.suppress(UnknownToxicError):  # it has thawed already
                    links[0].remove_toxic(name)

        stop = pool.listen(lambda: thaw() if health(pool) == ["unreachable"] else None)
        run, _ = await written(pool, "a", freezing(links))
        stop()
    assert run.session.text == TEXT
    assert run.session.stats.resumes >= 1


async def test_a_verifier_that_comes_back_is_gone_to_without_sitting_out_the_pause() -> None:
    async with pool_of(1) as (pool, _, links):
        tasks = list[asyncio.Task[None]]()

        async def away() -> None:
            await links[0].disable()
            links[0].cut()
            await until(lambda: health(pool) == ["unreachable"], pool)
            await links[0].enable()

        def begin(address: str) -> None:
            tasks.append(asyncio.create_task(away()))

        run, _ = await written(pool, "a", begin, first_backoff=50.0, max_backoff=60.0)
        await tasks[0]
    assert run.session.text == TEXT, "a pause would have been 50 seconds, and the test's patience shorter"


async def test_a_full_verifier_is_passed_over_while_another_has_room() -> None:
    slow = SchedulerConfig(max_sessions=1)
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(running(slow, step_time=0.003))
        two = await stack.enter_async_context(running(step_time=0.003))
        pool = await stack.enter_async_context(Verifiers([one.address, two.address]))
        await all_ready(pool)
        runs = await asyncio.gather(*(written(pool, f"session-{number}") for number in range(6)))
    assert all(run.session.text == TEXT for run, _ in runs)


async def test_other_tokens_are_explained_for_that_verifier_alone() -> None:
    other = Vocabulary(tuple(b"other %d" % token for token in range(7)))
    async with running() as system, Link.to("127.0.0.1:1") as nobody:
        async with Verifiers([system.address], vocabulary=VOCABULARY) as pool:
            await all_ready(pool)
            described = pool.best()
            assert described is not None
            assert (described.max_positions, described.eos_token_ids) == (512, EOS)
        async with Verifiers([system.address, str(nobody.address)], vocabulary=other) as pool:
            await until(lambda: "asked" not in health(pool), pool)
            unfit = pool.snapshot()[0]
            assert (unfit.health.value, unfit.fits) == ("unfit", False)
            assert "id 0" in unfit.why
            assert "unreachable" in health(pool)
        async with Verifiers([system.address], vocabulary=other) as pool:
            await until(lambda: health(pool) == ["unfit"], pool)
            refused = pool.refusal()
            assert isinstance(refused, PeerError)
            wording.keep(str(refused))


def described(**fields: object) -> bytes:
    plain = {"model": "m", "vocab_size": 7, "max_positions": 512, "fingerprint": VOCABULARY.fingerprint}
    found: bytes = encode_description(Description(**{**plain, **fields})).SerializeToString()  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("fallback", [Fallback.FAIL, Fallback.DRAFT])
@pytest.mark.parametrize("case", ["another protocol", "no message at all", "other tokens", "out of bounds"])
async def test_no_prompt_goes_to_a_verifier_that_is_known_to_be_unfit(case: str, fallback: Fallback) -> None:
    told = {
        "another protocol": described(protocol_version=99),
        "no message at all": b"\xff" * 40,
        "other tokens": described(fingerprint=bytes(32)),
        "out of bounds": described(max_positions=0),
    }[case]
    async with odd_verifier(told) as (service, address), Verifiers([address], vocabulary=VOCABULARY) as pool:
        await until(lambda: health(pool) == ["unfit"], pool)
        with DrafterThread(TinyDrafter()) as drafts:
            run = generation(
                pool.route("s"), drafts, LONG, fallback=fallback, patience=0.01, max_attempts=None
            )
            if fallback is Fallback.FAIL:
                with wording.raises(UnavailableError):
                    await anext(aiter(run))
            else:
                shown = run.shown()
                assert [item async for item in until_preview(shown)]
                await shown.aclose()
    assert service.num_sessions == 0


async def until_preview(shown: AsyncIterator[object]) -> AsyncIterator[object]:
    """What is shown up to the device's own first guess."""
    async for item in shown:
        yield item
        if isinstance(item, Preview):
            return


async def test_the_first_word_is_waited_for_and_no_longer_than_somebody_may_say_it() -> None:
    async with running() as system, Verifiers(["127.0.0.1:1", system.address]) as pool:
        assert pool.best() is None
        await pool.heard(60.0)
        assert pool.best() is not None
    async with Verifiers(["127.0.0.1:1", "localhost:2"]) as pool:
        await pool.heard(60.0)  # both refuse
        assert pool.best() is None
        refused = pool.refusal()
        assert isinstance(refused, UnavailableError)
        wording.keep(str(refused))
    async with (
        running() as system,
        Link.to(system.address, *both_ways(Hold())) as link,
        Verifiers([str(link.address)]) as pool,
    ):
        await pool.heard(0.05)
        assert health(pool) == ["asked"]


async def test_a_verifier_that_restarts_unseen_with_another_target_is_known_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Replaced:
        target, positions = "first", 64
        Session = None  # none is opened

        async def Describe(self, request: Any, context: Any) -> Any:
            template = f"of {self.target}" if request.include_chat_template else ""
            told = Description(self.target, 2, self.positions, bytes(32), chat_template=template)
            return encode_description(told)

    monkeypatch.setattr(module, "FRESH", 0.0)
    server, service = grpc.aio.server(), Replaced()
    add_service(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    found = list[Description | None]()
    async with Verifiers([f"127.0.0.1:{port}"]) as pool:
        for service.target, service.positions in (("first", 64), ("second", 128)):
            await pool.heard(60.0)
            found.append(pool.best())
    await server.stop(None)
    assert [(each.max_positions, each.chat_template) for each in found if each is not None] == [
        (64, "of first"),
        (128, "of second"),
    ]


async def test_a_verifier_that_tells_a_long_turn_gets_no_session_while_another_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edge_client.core.verifier_choice.FAST_SHARE", 0.5)
    busy, idle = (
        described(version=name, load=VerifierLoad(3, 9, turn_us=turn))
        for name, turn in (("busy", 60_000_000), ("idle", 3_000))  # no loopback makes up for a minute
    )
    async with odd_verifier(busy) as (_, first), odd_verifier(idle) as (_, second):
        for addresses in ([first, second], [second, first]):
            async with Verifiers(addresses, vocabulary=VOCABULARY) as pool:
                await all_ready(pool)
                best = pool.best()
                assert best is not None
                assert best.version == "idle"
                for key in map(str, range(8)):
                    route = pool.route(key)
                    with contextlib.suppress(UnavailableError):
                        route.open(lambda _: None, lambda _: None)
                    assert route.address == second


async def test_a_text_is_written_by_one_target_though_another_has_its_tokens() -> None:
    async with contextlib.AsyncExitStack() as stack:
        own = await stack.enter_async_context(running(step_time=0.003))
        other = await stack.enter_async_context(running(name="other", salt=2))
        link = await stack.enter_async_context(Link.to(own.address))
        places, meanwhile = [str(link.address), other.address], list[str]()
        pool = await stack.enter_async_context(Verifiers(places, vocabulary=VOCABULARY))
        await until(lambda: health(pool) == ["ready", "unfit"], pool)
        tasks = list[asyncio.Task[None]]()

        async def away() -> None:
            await link.disable()
            link.cut()
            await until(lambda: health(pool) == ["unreachable", "ready"], pool)
            run, where = await written(pool, "of the other")  # the only target that answers
            meanwhile[:] = [pool.target, *where]
            assert run.session.text == target_alone((1, 2, 3), LONG, EOS, salt=2)
            await link.enable()

        for name in sessions_of(*places)[:2]:  # at home at either
            tasks.clear()
            run, where = await written(pool, name, lambda _: tasks.append(asyncio.create_task(away())))
            await tasks[0]
            assert (run.session.text, where) == (TEXT, places[:1])
            assert run.session.stats.resumes >= 1
            assert meanwhile == ["other", other.address]
            await until(lambda: health(pool) == ["ready", "unfit"], pool)
        assert "tiny" in pool.snapshot()[1].why
        described = pool.best()
        assert described is not None
        assert described.model == "tiny"


async def test_a_target_is_renamed_by_one_verifier_after_the_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its texts always have a verifier, and a text that began with the old name goes to no other."""
    monkeypatch.setattr(module, "FRESH", 0.0)
    caplog.set_level(logging.WARNING, module.__name__)
    async with contextlib.AsyncExitStack() as stack:
        odd = [await stack.enter_async_context(odd_verifier(described(model="/old/m"))) for _ in range(3)]
        places = [address for _, address in odd]
        pool = await stack.enter_async_context(Verifiers(places, vocabulary=VOCABULARY))
        await all_ready(pool)

        def goes_to(target: str, key: str) -> str:
            route = pool.route(key, target=target)
            route.open(lambda _: None, lambda _: None).abandon()
            return route.address

        async def warned() -> int:
            for _ in range(3):
                await pool.heard(60.0)
            return len(caplog.records)

        keys = sessions_of(*places)
        assert (await warned(), {goes_to("", key) for key in keys}) == (0, set(places))
        for renamed, target, num_warnings in ((1, "m", 1), (2, "n", 2), (3, "n", 2)):
            odd[renamed - 1][0].described = described(model="n")
            assert await warned() == num_warnings
            assert pool.target == target
            new, old = places[:renamed], places[renamed:]
            assert {goes_to("", key) for key in keys} == set(new if target == "n" else old)
            assert {goes_to("n", key) for key in keys} == set(new)
            if old:
                assert {goes_to("m", key) for key in keys} == set(old)
        with pytest.raises(PeerError):
            goes_to("m", "a")


async def test_a_balancer_in_between_is_told_by_what_to_choose() -> None:
    async with running(tenant_key="x-session-id") as system, Verifiers([system.address]) as pool:
        await all_ready(pool)
        run = generation(pool.route("some key"), None, LONG, make_policy("off"))
        shown = run.shown()
        await anext(shown)
        assert [each.tenant for each in system.worker.scheduler.sessions.values()] == ["some key"]
        await shown.aclose()


async def test_a_status_tells_what_a_page_shows() -> None:
    async with running() as system, Verifiers([system.address]) as pool:
        assert health(pool) == ["asked"]
        await all_ready(pool)
        (status,) = pool.snapshot()
    assert (status.address, status.health.value, status.model) == (system.address, "ready", "tiny")
    assert (status.num_sessions, status.max_sessions, status.fits) == (0, 64, True)
    assert status.min_rtt is not None
    assert status.smoothed_rtt is not None
    assert 0 < status.min_rtt <= status.smoothed_rtt
    assert (status.why, status.last_error) == ("it serves tiny", "")


@pytest.mark.parametrize("addresses", [["gpu"], [], ["10.0.0.1:1"]])
def test_an_address_that_is_none_is_refused_before_anything_begins(addresses: list[str]) -> None:
    with wording.raises(UserError):
        Verifiers(addresses)


async def test_a_name_is_looked_up_while_all_is_well_and_who_is_none_of_it_keeps_its_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with several(3) as (_, links):
        places = [str(link.address) for link in links]
        answer = places[:2]

        async def resolve(address: VerifierAddress) -> tuple[VerifierAddress, ...]:
            return tuple(parse_address(each) for each in answer)

        monkeypatch.setattr(module, "resolve", resolve)
        monkeypatch.setattr(module, "RESOLVE_OFTEN", 0.0)
        async with Verifiers(["pods.invalid:50051"], insecure=True) as pool:
            await until(lambda: health(pool) == ["ready", "ready"], pool)

            def roll(address: str) -> None:
                answer[:] = places[1:]
                for member in pool.members:
                    member.wake.set()

            run, gone_to = await written(pool, sessions_of(*places[:2])[0], roll)
            assert (run.session.text, gone_to) == (TEXT, places[:1])
            await until(lambda: health(pool) == ["ready", "ready"], pool)
            assert [each.address for each in pool.snapshot()] == places[1:]
