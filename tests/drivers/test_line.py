"""What leaves a verifier, and when: sizes and times that tell nothing, both machines' ends joined in virtual
time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import cast

import pytest

from cloud_verifier.core.effects import End
from cloud_verifier.line import END_FRAMES, SPARE_FILLERS, Line, PrivacySettings
from cloud_verifier.outbox import Outbox, Outgoing
from common.errors import Code, ForerunError, PeerError, UnavailableError, UserError
from common.messages import Close, Commit, Finish, FinishReason, Open, Opened, Propose, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.rpc.codec import decode_request, encode_request
from common.rpc.frames import DOWN_BYTES, STRICT_DOWN, STRICT_UP, UP_BYTES, Joiner
from common.sampling import SamplingParams
from edge_client.channel import MOST_WAITING, Connection, Stream
from tests.drivers.virtual import run

TURN = 0.031  # seconds; the cadence that follows is 35 ms
STRICT = PrivacySettings(Privacy.STRICT, 0.025)
PADDED = PrivacySettings()
OFF = PrivacySettings(Privacy.OFF)
FINISH = Finish(FinishReason.STOP, 20)

Sent = tuple[float, Propose]
Told = tuple[float, Commit]
Seen = tuple[float, int]


def asking(privacy: Privacy | None, **fields: object) -> Open:
    return Open((1, 2, 3), SamplingParams(), b"", privacy=privacy, **fields)  # type: ignore[arg-type]


# what is agreed on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "demanded", "held"),
    [
        (Privacy.OFF, Privacy.OFF, Privacy.OFF),
        (Privacy.OFF, Privacy.PADDED, Privacy.PADDED),
        (Privacy.PADDED, Privacy.OFF, Privacy.PADDED),
        (Privacy.PADDED, Privacy.STRICT, Privacy.STRICT),
        (Privacy.STRICT, Privacy.OFF, Privacy.STRICT),
        (None, Privacy.OFF, Privacy.OFF),
        (None, Privacy.PADDED, Privacy.PADDED),
    ],
)
def test_the_stricter_of_both_sides_holds(asked: Privacy | None, demanded: Privacy, held: Privacy) -> None:
    assert PrivacySettings(demanded).agreed(asked) is held


def test_an_edge_that_does_not_know_strict_is_refused_where_it_is_a_must() -> None:
    with pytest.raises(UserError, match="update the edge") as caught:
        STRICT.agreed(None)
    assert caught.value.code is Code.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("turn", "cadence"), [(0.0, 0.01), (0.0101, 0.015), (0.031, 0.035), (0.2, 0.2), (9.0, 0.25)]
)
def test_the_cadence_follows_the_turn_in_coarse_steps(turn: float, cadence: float) -> None:
    assert PrivacySettings(Privacy.STRICT).cadence(turn) == pytest.approx(cadence)
    assert STRICT.cadence(turn) == 0.025


@pytest.mark.parametrize("interval", [-1.0, 0.0005, 11.0, float("nan")])
def test_a_cadence_that_cannot_be_is_refused(interval: float) -> None:
    with pytest.raises(UserError, match=r"must lie in \[1, 10000\]"):
        PrivacySettings(Privacy.STRICT, interval)


def test_what_it_costs_is_said() -> None:
    assert STRICT.in_words(TURN) == (
        "Privacy strict: every session sends 20.5 kB/s up and 5.1 down, whatever it says, and each message "
        "waits up to 25 ms."
    )
    assert "128 bytes up and 64 down" in PADDED.in_words(TURN)
    assert OFF.in_words(TURN).startswith("Privacy off: sizes and times of messages show")


# one side ---------------------------------------------------------------------------------------------------


async def sent(
    settings: PrivacySettings,
    asked: Privacy | None,
    told: Sequence[ServerMessage],
    error: ForerunError | None = None,
) -> list[pb.SessionResponse]:
    """All that leaves of a stream that is told `Opened`, these, and its end."""
    line, outbox, frames = Line(settings, lambda: TURN), Outbox(), list[pb.SessionResponse]()
    line.asked(asking(asked))
    for message in (Opened(2, 32), *told):
        outbox.put_nowait(message)
    outbox.put_nowait(End(1, error))
    while found := await line.leaving(outbox):
        frames += found
    assert line.end == End(1, error)
    return frames


def kinds(frames: Sequence[pb.SessionResponse]) -> list[str | None]:
    return [frame.WhichOneof("message") for frame in frames]


COMMITS = [Commit(3, (5,)), Commit(4, (300,) * 100)]
WHOLE: Sequence[Outgoing] = (Opened(2, 32), *COMMITS, FINISH, End(1))


def test_off_pads_nothing_and_an_old_edge_is_told_nothing() -> None:
    frames = run(sent(OFF, None, [FINISH]))
    assert kinds(frames) == ["opened", "finish"]
    assert not any(frame.padding for frame in frames)
    assert not frames[0].opened.privacy


def test_padded_frames_have_one_size_whatever_they_hold() -> None:
    frames = run(sent(PADDED, Privacy.OFF, [COMMITS[1], FINISH]))
    assert {frame.ByteSize() for frame in frames} == {DOWN_BYTES}
    assert kinds(frames) == ["opened", "part", "part", "part", "part", "finish"]
    assert (frames[0].opened.privacy, frames[0].opened.interval_us) == (pb.PRIVACY_PADDED, 0)


def test_an_old_edge_gets_whole_messages_of_whole_frames() -> None:
    frames = run(sent(PADDED, None, [*COMMITS, FINISH]))
    assert kinds(frames) == ["opened", "commit", "finish"]
    assert [frame.ByteSize() // DOWN_BYTES for frame in frames] == [1, 4, 1]
    assert not frames[0].opened.privacy


def test_with_log_probabilities_frames_are_longer_as_the_open_says() -> None:
    async def first() -> int:
        line, outbox = Line(PADDED, lambda: TURN), Outbox()
        line.asked(asking(Privacy.PADDED, logprobs=5))
        outbox.put_nowait(Opened(2, 32))
        return (await line.leaving(outbox))[0].ByteSize()

    assert run(first()) == 512


def test_a_strict_stream_ends_after_a_round_number_of_frames() -> None:
    frames = run(sent(STRICT, Privacy.STRICT, [*COMMITS, FINISH]))
    assert len(frames) == END_FRAMES
    assert kinds(frames)[-1] == "filler"


def test_one_that_has_said_all_does_not_hold_a_verifier_that_goes() -> None:
    async def cut() -> tuple[int, float]:
        line, outbox = Line(STRICT, lambda: TURN), Outbox()
        line.asked(asking(Privacy.STRICT))
        for message in WHOLE:
            outbox.put_nowait(message)
        num_frames, clock = 0, asyncio.get_running_loop().time
        while line.end is None or num_frames < 7:  # some fillers after the last word, too
            num_frames += len(await line.leaving(outbox))
        line.hurry()
        asked_at = clock()
        while frames := await line.leaving(outbox):
            num_frames += len(frames)
        return num_frames, clock() - asked_at

    assert run(cut()) == (7, 0.0)


def test_one_that_has_more_to_say_says_it_when_hurried() -> None:
    async def all_of_it() -> list[pb.SessionResponse]:
        line, outbox, frames = Line(STRICT, lambda: TURN), Outbox(), list[pb.SessionResponse]()
        line.asked(asking(Privacy.STRICT))
        line.hurry()
        for message in WHOLE:
            outbox.put_nowait(message)
        while found := await line.leaving(outbox):
            frames += found
        return frames

    frames = run(all_of_it())
    joiner = Joiner(pb.SessionResponse, 1 << 20)
    joiner.takes_fillers = True
    assert kinds([whole for frame in frames for whole in joiner.take(frame)])[-1] == "finish"
    assert len(frames) < END_FRAMES


def test_one_that_fails_ends_with_the_next_slot() -> None:
    frames = run(sent(STRICT, Privacy.STRICT, [], UnavailableError("gone")))
    assert kinds(frames) == ["part", "filler"]


def test_a_flood_of_fillers_is_cut() -> None:
    async def flooded() -> None:
        line, outbox = Line(STRICT, lambda: TURN), Outbox()
        line.asked(asking(Privacy.STRICT))
        outbox.put_nowait(Opened(2, 32))
        await line.leaving(outbox)
        filler = pb.SessionRequest(filler=pb.Filler())
        for _ in range(SPARE_FILLERS):
            line.received(filler)
        with pytest.raises(PeerError, match="fillers came"):
            line.received(filler)
        await asyncio.sleep(1.0)  # 40 slots of a clock that does not wait
        for _ in range(2 * 40 - 1):
            line.received(filler)
        with pytest.raises(PeerError, match="fillers came"):
            line.received(filler)

    run(flooded())


# both sides -------------------------------------------------------------------------------------------------


class Call:
    """Both ends of one stream in memory, without delay; `up` and `down`: what somebody between them sees."""

    def __init__(self, settings: PrivacySettings, commits: Sequence[Told]) -> None:
        self.up, self.down = list[Seen](), list[Seen]()
        self.heard = list[object]()  # by the verifier
        self._settings = settings
        self._commits = commits

    def Session(self, requests: AsyncIterator[pb.SessionRequest], metadata: object = None) -> Call:
        self._loop = asyncio.get_running_loop()
        self._line, self._outbox = Line(self._settings, lambda: TURN), Outbox()
        self._reading = self._loop.create_task(self._read(requests))
        return self

    def cancel(self) -> None:
        self._reading.cancel()

    async def __aiter__(self) -> AsyncIterator[pb.SessionResponse]:
        while frames := await self._line.leaving(self._outbox):
            for frame in frames:
                self.down.append((round(self._loop.time(), 9), frame.ByteSize()))
                yield frame

    async def _read(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        async for frame in requests:
            self.up.append((round(self._loop.time(), 9), frame.ByteSize()))
            for request in self._line.received(frame):
                self._take(decode_request(request))

    def _take(self, message: object) -> None:
        self.heard.append(message)
        if isinstance(message, Open):
            self._line.asked(message)
            self._outbox.put_nowait(Opened(2, 32))
            for at, told in self._commits:
                self._loop.call_at(at, self._outbox.put_nowait, told)
        if isinstance(message, Close):
            self._outbox.put_nowait(Finish(FinishReason.CANCELLED, 2))
            self._outbox.put_nowait(End(1))


class Wire(Connection):
    """A connection on which there is one stream, in memory."""

    def __init__(self, call: Call) -> None:
        self.stub = call  # type: ignore[assignment]  # gRPC's stub has the method, too
        self.metadata = lambda: ()
        self.num_streams = 0
        self._retired = False


async def talk(call: Call, proposes: Sequence[Sent], until: float) -> list[ServerMessage]:
    """An edge's stream that asks for padded frames, sends these at these times and says goodbye."""
    heard, loop, lost = list[ServerMessage](), asyncio.get_running_loop(), list[object]()
    stream = Stream(cast(Connection, Wire(call)), heard.append, lost.append, lambda: None)
    stream.send(asking(Privacy.PADDED))
    for at, message in proposes:
        loop.call_at(at, stream.send, message)
    loop.call_at(until, stream.send, Close())
    await asyncio.sleep(until + 10.0)
    assert lost == [None]
    return heard


def talked(
    settings: PrivacySettings, proposes: Sequence[Sent], commits: Sequence[Told], until: float = 1.0
) -> tuple[Call, list[ServerMessage]]:
    call = Call(settings, commits)
    return call, run(talk(call, proposes, until))


def chain(length: int) -> Propose:
    return Propose((300,) * length, bytes(length), seen_advance=1)


BUSY = [(0.01 * number, chain(1 + number % 8)) for number in range(1, 60)]
FAST = [(0.02 * number, Commit(2 + number, (7,))) for number in range(1, 40)]
SELDOM = [(0.3, chain(2))]
SLOW = [(0.21, Commit(3, (7, 8, 9))), (0.8, Commit(6, (5,)))]
ON_THE_GRID = [round(0.025 * number, 9) for number in range(64)]


@pytest.mark.parametrize(("proposes", "commits"), [(BUSY, FAST), (SELDOM, SLOW), ([], [])])
def test_under_a_cadence_all_texts_look_alike(proposes: list[Sent], commits: list[Told]) -> None:
    call, heard = talked(STRICT, proposes, commits)
    (_, open_size), *up = call.up
    assert open_size == 1024
    assert up == [(at, STRICT_UP * UP_BYTES) for at in ON_THE_GRID]
    assert call.down == [(at, STRICT_DOWN * DOWN_BYTES) for at in ON_THE_GRID]
    tokens = [token for each in heard if isinstance(each, Commit) for token in each.tokens]
    assert tokens == [token for _, each in commits for token in each.tokens]
    assert call.heard[1:] == [*(each for _, each in proposes), Close()]


def test_without_one_sizes_are_alike_and_times_are_not() -> None:
    call, _ = talked(PADDED, SELDOM, SLOW)
    assert call.up[1:] == [(0.3, UP_BYTES), (1.0, UP_BYTES)]
    assert call.down == [(at, DOWN_BYTES) for at in (0.0, 0.21, 0.8, 1.0)]


class Old(Call):
    """A verifier that does not know the rule."""

    def _take(self, message: object) -> None:
        super()._take(replace(message, privacy=None) if isinstance(message, Open) else message)


def test_a_verifier_that_does_not_know_privacy_is_sent_whole_messages_of_whole_frames() -> None:
    call = Old(OFF, SLOW)
    heard = run(talk(call, [(0.1, chain(2)), (0.2, chain(200))], until=1.0))
    assert [size for _, size in call.up] == [1024, UP_BYTES, 5 * UP_BYTES, UP_BYTES]
    assert call.heard[1:] == [chain(2), chain(200), Close()]
    assert heard[0] == Opened(2, 32)
    assert len({size for _, size in call.down}) > 1, "which it does not pad"


class Deaf(Call):
    """Reads requests only for a while, as a link that is stuck."""

    async def _read(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        async for frame in requests:
            self.up.append((self._loop.time(), frame.ByteSize()))
            for request in self._line.received(frame):
                self._take(decode_request(request))
            if 0.5 < self._loop.time() < 5.0:
                await asyncio.sleep(5.0 - self._loop.time())


def test_a_link_that_is_stuck_does_not_gather_fillers() -> None:
    call = Deaf(STRICT, [])
    run(talk(call, [(0.6, chain(3)), (4.0, chain(4))], until=6.0))
    at_once = [at for at, _ in call.up if 4.0 < at < 5.02]
    assert 0 < len(at_once) <= MOST_WAITING, "of 180 slots meanwhile"
    assert call.heard[1:] == [chain(3), chain(4), Close()]


def test_the_same_talk_twice_is_the_same_to_the_bit() -> None:
    first, second = (talked(STRICT, BUSY, FAST)[0] for _ in range(2))
    assert (first.up, first.down) == (second.up, second.down)


def test_requests_in_parts_are_the_requests_that_were_sent() -> None:
    call, _ = talked(PADDED, [(0.1, chain(200))], [])
    assert {size for _, size in call.up[1:]} == {UP_BYTES}
    assert call.heard[1] == chain(200)
    assert encode_request(chain(200)).ByteSize() > 4 * UP_BYTES


def test_messages_of_a_flood_wait_and_those_of_an_edge_do_not() -> None:
    from cloud_verifier.line import MESSAGE_BURST, MESSAGE_RATE, Pace

    pace = Pace(0.0)
    assert [pace.take(number * 0.01) for number in range(5000)] == [0.0] * 5000, "a hundred a second"
    waits = [pace.take(50.0) for _ in range(MESSAGE_BURST + 1000)]
    assert waits[: MESSAGE_BURST - 1] == [0.0] * (MESSAGE_BURST - 1)
    assert waits[-1] == pytest.approx(1000 / MESSAGE_RATE)
    assert pace.take(100.0) == 0.0, "after a pause"


def test_streams_of_a_tenant_that_flood_share_its_rate_and_its_others_do_not_wait() -> None:
    from cloud_verifier.line import TENANT_RATE, Pace

    flooding = set[Pace]()
    floods, calm = [Pace(0.0, flooding=flooding) for _ in range(8)], Pace(0.0, flooding=flooding)
    free_at, taken = [0.0] * 8, 0
    for now in (step * 0.01 for step in range(3000)):
        assert calm.take(now) == 0.0, "a hundred a second"
        for number, pace in enumerate(floods):
            while free_at[number] <= now:
                free_at[number] = now + pace.take(now)
                taken += now >= 20.0
    assert taken == pytest.approx(10 * TENANT_RATE, rel=0.1)
    for pace in floods:
        pace.end()
    assert not flooding
