"""Laws of several verifiers, over real connections: no session is lost with one of them, and no other
moves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest

from cloud_verifier.core.config import SchedulerConfig
from common.errors import Code, UnavailableError, UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.core.config import Fallback
from edge_client.core.effects import Preview
from edge_client.core.policies import make_policy
from edge_client.core.ranking import Candidate, choose
from edge_client.draft_worker import DraftWorker
from link import Link, Timeout, both_ways
from tests.drivers.tiny import EOS, VOCABULARY, System, generation, running
from tests.edge_client.odd_verifier import odd_verifier
from tests.worlds.models import TinyDrafter, target_alone

if TYPE_CHECKING:
    from edge_client.generation import Generation
    from edge_client.verifiers import Verifiers

pytestmark = pytest.mark.grpc

LONG = SamplingParams(max_tokens=150, ignore_eos=True, temperature=0.8, seed=11)
TEXT = target_alone((1, 2, 3), LONG, EOS)


@pytest.fixture(autouse=True)
def equally_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is while they are measured."""
    monkeypatch.setattr("edge_client.core.ranking.NEAR", 60.0)


def sessions_of(*addresses: str) -> list[str]:
    """Three ids that are at home at each, in turn: ports, and so homes, are others in every run."""
    candidates = [Candidate(address) for address in addresses]
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


def health(pool: Verifiers) -> list[str]:
    return [status.health.value for status in pool.snapshot()]


async def written(
    pool: Verifiers, session_id: str, at: dict[int, Callable[[], None]] | None = None
) -> tuple[Generation, list[str]]:
    """A text over the pool; at so many tokens something happens. The generation, and each stream's
    address."""
    route = pool.route(session_id)
    run = generation(route, None, LONG, make_policy("off"), session_id=session_id, max_attempts=None)
    places, pending = list[str](), dict(at or {})
    async for _ in run:
        if not places or places[-1] != route.address:
            places.append(route.address)
        for count in [each for each in pending if len(run.session.text) >= each]:
            pending.pop(count)()
    return run, places


async def test_one_that_is_cut_off_in_mid_text_moves_its_own_sessions_only() -> None:
    from edge_client.verifiers import Verifiers

    async with several(2) as (_, links), Verifiers([str(link.address) for link in links]) as pool:
        await until(lambda: health(pool) == ["ready", "ready"], pool)
        gone, left = (str(link.address) for link in links)

        async def cut() -> None:
            await links[0].disable()
            links[0].cut()

        tasks = list[asyncio.Task[None]]()
        names = sessions_of(gone, left)
        first = {20: lambda: tasks.append(asyncio.create_task(cut()))}
        runs = await asyncio.gather(
            *(written(pool, name, first if name == names[0] else None) for name in names)
        )
    assert {places[0] for _, places in runs} == {gone, left}, "both had some"
    for run, places in runs:
        assert run.session.text == TEXT
        assert places in ([left], [gone, left])
        assert run.session.stats.resumes == len(places) - 1


async def test_a_drain_moves_sessions_at_once_and_none_fails() -> None:
    from edge_client.verifiers import Verifiers

    async with several(2) as (systems, links), Verifiers([str(link.address) for link in links]) as pool:
        await until(lambda: health(pool) == ["ready", "ready"], pool)
        gone, left = (str(link.address) for link in links)
        names = sessions_of(gone, left)
        drain = {20: lambda: systems[0].worker.drain(5.0)}
        runs = await asyncio.gather(
            *(written(pool, name, drain if name == names[0] else None) for name in names)
        )
        late, places = await written(pool, names[0])
        assert "draining" in health(pool)
    assert places == [left], "who comes later is not sent there"
    for run, where in [*runs, (late, places)]:
        assert run.session.text == TEXT
        assert where in ([left], [gone, left])
        assert run.session.stats.resumes <= 1


async def test_a_verifier_that_freezes_is_left_for_the_other() -> None:
    """A link that swallows everything resets nothing: only silence and an unanswered question tell."""
    from edge_client.verifiers import Verifiers

    async with several(2) as (_, links), Verifiers([str(link.address) for link in links]) as pool:
        await until(lambda: health(pool) == ["ready", "ready"], pool)

        run, places = await frozen(pool, links)
    assert run.session.text == TEXT
    assert len(places) == 2
    assert run.session.stats.resumes == 1


async def frozen(pool: Verifiers, links: list[Link]) -> tuple[Generation, list[str]]:
    """A text, whose link swallows everything once it has 30 tokens."""
    route = pool.route("a")
    run = generation(route, None, LONG, make_policy("off"), session_id="a", max_attempts=None)
    places, silent = list[str](), False
    async for _ in run:
        if not places or places[-1] != route.address:
            places.append(route.address)
        if not silent and len(run.session.text) >= 30:
            silent = True
            (link,) = [each for each in links if str(each.address) == route.address]
            for toxic in both_ways(Timeout(0)):
                link.add_toxic(toxic)
    return run, places


async def test_the_only_verifier_freezes_and_thaws() -> None:
    """Its connection is given up for another; what the old one still holds is void."""
    from edge_client.verifiers import Verifiers

    async with several(1) as (_, links), Verifiers([str(links[0].address)]) as pool:
        await pool.ready(5.0)
        stop = pool.listen(lambda: thaw() if health(pool) == ["unreachable"] else None)

        def thaw() -> None:
            for name in ("timeout_upstream", "timeout_downstream"):
                with contextlib.suppress(Exception):
                    links[0].remove_toxic(name)

        run, _ = await frozen(pool, links)
        stop()
    assert run.session.text == TEXT
    assert run.session.stats.resumes >= 1


async def test_a_verifier_that_comes_back_is_gone_to_without_sitting_out_the_pause() -> None:
    from edge_client.verifiers import Verifiers

    async with several(1) as (_, links), Verifiers([str(links[0].address)]) as pool:
        await pool.ready(5.0)
        route, tasks = pool.route("a"), list[asyncio.Task[None]]()
        run = generation(
            route, None, LONG, make_policy("off"), max_attempts=None, first_backoff=50.0, max_backoff=60.0
        )

        async def away() -> None:
            await links[0].disable()
            links[0].cut()
            await until(lambda: health(pool) == ["unreachable"], pool)
            await links[0].enable()

        async for _ in run:
            if not tasks and len(run.session.text) >= 20:
                tasks.append(asyncio.create_task(away()))
        await tasks[0]
    assert run.session.text == TEXT, "a pause would have been 50 seconds, and the test's patience shorter"


async def test_a_full_verifier_is_passed_over_while_another_has_room() -> None:
    from edge_client.verifiers import Verifiers

    slow = SchedulerConfig(max_sessions=1)
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(running(slow, step_time=0.003))
        two = await stack.enter_async_context(running(step_time=0.003))
        pool = await stack.enter_async_context(Verifiers([one.address, two.address]))
        await until(lambda: health(pool) == ["ready", "ready"], pool)
        runs = await asyncio.gather(*(written(pool, f"session-{number}") for number in range(6)))
    assert all(run.session.text == TEXT for run, _ in runs)


async def test_other_tokens_are_explained_for_that_verifier_alone() -> None:
    from edge_client.verifiers import Verifiers

    other = Vocabulary(tuple(b"other %d" % token for token in range(7)))
    async with running() as system, Link.to("127.0.0.1:1") as nobody:
        async with Verifiers([system.address], vocabulary=VOCABULARY) as pool:
            described = await pool.ready(5.0)
            assert described == pool.best()
            assert (described.max_positions, described.eos_token_ids) == (512, EOS)
        async with Verifiers([system.address, str(nobody.address)], vocabulary=other) as pool:
            await until(lambda: "asked" not in health(pool), pool)
            unfit = pool.snapshot()[0]
            assert (unfit.health.value, unfit.fits) == ("unfit", False)
            assert "id 0" in unfit.why
            assert "unreachable" in health(pool)
        async with Verifiers([system.address], vocabulary=other) as pool:
            with pytest.raises(UserError, match="id 0") as refused:
                await pool.ready(5.0)
            assert refused.value.code is Code.FAILED_PRECONDITION


def described(**fields: object) -> bytes:
    from common.rpc.describe import Description, encode_description

    plain = {"model": "m", "vocab_size": 7, "max_positions": 512, "fingerprint": VOCABULARY.fingerprint}
    found: bytes = encode_description(Description(**{**plain, **fields})).SerializeToString()  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("fallback", [Fallback.FAIL, Fallback.DRAFT])
@pytest.mark.parametrize("case", ["another protocol", "no message at all", "other tokens", "out of bounds"])
async def test_no_prompt_goes_to_a_verifier_that_is_known_to_be_unfit(case: str, fallback: Fallback) -> None:
    from edge_client.verifiers import Verifiers

    told = {
        "another protocol": described(protocol_version=99),
        "no message at all": b"\xff" * 40,
        "other tokens": described(fingerprint=bytes(32)),
        "out of bounds": described(max_positions=0),
    }[case]
    async with odd_verifier(told) as (service, address), Verifiers([address], vocabulary=VOCABULARY) as pool:
        await until(lambda: health(pool) == ["unfit"], pool)
        with DraftWorker(TinyDrafter()) as drafts:
            run = generation(
                pool.route("s"), drafts, LONG, fallback=fallback, patience=0.01, max_attempts=None
            )
            if fallback is Fallback.FAIL:
                with pytest.raises(UnavailableError, match="no verifier fits this device"):
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


async def test_an_offered_verifier_is_used_and_stays_for_as_long_as_it_answers() -> None:
    from edge_client.verifiers import Verifiers

    async with several(2) as (_, links), Verifiers([str(links[0].address)]) as pool:
        own, offered = (str(link.address) for link in links)
        pool.offer([offered, own])  # one's own is no news
        await until(lambda: health(pool) == ["ready", "ready"], pool)

        async def cut() -> None:
            await links[0].disable()
            links[0].cut()

        def lose() -> None:
            cutting.append(asyncio.ensure_future(cut()))

        cutting = list[asyncio.Future[None]]()
        session_id = sessions_of(own, offered)[0]
        run, places = await written(pool, session_id, {20: lose, 60: lambda: pool.offer([])})
        assert (run.session.text, places) == (TEXT, [own, offered])
        await until(lambda: health(pool) == ["unreachable", "ready"], pool)
        await links[1].disable()
        links[1].cut()
        await until(lambda: [each.address for each in pool.snapshot()] == [own], pool)
        pool.offer([offered])
        await links[1].enable()
        await until(lambda: health(pool) == ["unreachable", "ready"], pool)


async def test_an_offer_that_cannot_be_used_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    from edge_client.verifiers import Verifiers

    async with running() as system, Verifiers(["127.0.0.1:1"]) as pool:
        pool.offer(["10.0.0.1:50051", system.address])
        assert [each.address for each in pool.snapshot()] == ["127.0.0.1:1", system.address]
        assert "10.0.0.1:50051 is on another machine, and without TLS" in caplog.text


async def test_the_first_word_is_waited_for_and_no_longer_than_somebody_may_say_it() -> None:
    from edge_client.verifiers import Verifiers

    async with running() as system, Verifiers(["127.0.0.1:1", system.address]) as pool:
        assert pool.best() is None
        await pool.heard(60.0)
        assert pool.best() is not None
    async with Verifiers(["127.0.0.1:1", "localhost:2"]) as pool:
        await pool.heard(60.0)  # both refuse
        assert pool.best() is None
    async with (
        running() as system,
        Link.to(system.address, *both_ways(Timeout(0))) as link,
        Verifiers([str(link.address)]) as pool,
    ):
        await pool.heard(0.05)
        assert health(pool) == ["asked"]


async def test_a_balancer_in_between_is_told_by_what_to_choose() -> None:
    from edge_client.verifiers import Verifiers

    async with running(tenant_key="x-session-id") as system, Verifiers([system.address]) as pool:
        await pool.ready(5.0)
        run = generation(pool.route("some key"), None, LONG, make_policy("off"))
        shown = run.shown()
        await anext(shown)
        assert [each.tenant for each in system.worker.scheduler.sessions.values()] == ["some key"]
        await shown.aclose()


async def test_a_status_tells_what_a_page_shows() -> None:
    from edge_client.verifiers import Verifiers

    async with running() as system, Verifiers([system.address]) as pool:
        assert health(pool) == ["asked"]
        await pool.ready(5.0)
        (status,) = pool.snapshot()
    assert (status.address, status.health.value, status.model) == (system.address, "ready", "tiny")
    assert (status.num_sessions, status.max_sessions, status.fits) == (0, 64, True)
    assert status.min_rtt is not None
    assert status.smoothed_rtt is not None
    assert 0 < status.min_rtt <= status.smoothed_rtt
    assert (status.why, status.last_error) == ("it serves tiny", "")


async def test_nobody_there_is_told_for_each() -> None:
    from edge_client.verifiers import Verifiers

    async with Verifiers(["127.0.0.1:1", "localhost:2"]) as pool:
        await until(lambda: health(pool) == ["unreachable"] * 2, pool)
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1.*localhost:2") as refused:
            await pool.ready(0.01)
        assert pool.best() is None
    assert "is `forerun verify` running there?" in str(refused.value)


def test_an_address_that_is_none_is_refused_before_anything_begins() -> None:
    from edge_client.verifiers import Verifiers

    for addresses, words in (
        (["gpu"], "no HOST:PORT"),
        ([], "no verifier is named"),
        (["10.0.0.1:1"], "TLS"),
    ):
        with pytest.raises(UserError, match=words):
            Verifiers(addresses)


async def test_a_name_of_several_machines_is_looked_up_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_client.verifiers import VerifierAddress, Verifiers
    from edge_client.verifiers import pool as module

    async with running() as system:
        port = int(system.address.rpartition(":")[2])

        async def two(address: VerifierAddress) -> tuple[VerifierAddress, ...]:
            return VerifierAddress("127.0.0.1", port), VerifierAddress("127.0.0.2", port)

        monkeypatch.setattr(module, "resolve", two)
        async with Verifiers([f"pods.invalid:{port}"], insecure=True) as pool:
            await until(lambda: "ready" in health(pool), pool)
            assert [each.address for each in pool.snapshot()] == [f"127.0.0.{n}:{port}" for n in (1, 2)]


async def test_a_name_is_looked_up_while_all_is_well_and_who_is_none_of_it_keeps_its_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from edge_client.verifiers import Verifiers, parse_address
    from edge_client.verifiers import pool as module

    async with several(3) as (_, links):
        places = [str(link.address) for link in links]
        answer = places[:2]

        async def resolve(address: object) -> tuple[object, ...]:
            return tuple(parse_address(each) for each in answer)

        monkeypatch.setattr(module, "resolve", resolve)
        monkeypatch.setattr(module, "RESOLVE_OFTEN", 0.0)
        async with Verifiers(["pods.invalid:50051"], insecure=True) as pool:
            await until(lambda: health(pool) == ["ready", "ready"], pool)

            def roll() -> None:
                answer[:] = places[1:]
                for member in pool.members:
                    member.wake.set()

            run, gone_to = await written(pool, sessions_of(*places[:2])[0], {20: roll})
            assert (run.session.text, gone_to) == (TEXT, places[:1])
            await until(lambda: health(pool) == ["ready", "ready"], pool)
            assert [each.address for each in pool.snapshot()] == places[1:]
