"""Padded messages, and frames that no edge sends any more (rule 21)."""

from __future__ import annotations

from hypothesis import strategies as st

from common.pb import verifier_pb2 as pb
from tests.fuzz.cases import DEADLINES, ENDS, HURRY, STEPS, Case, Event, Send
from tests.fuzz.meaningless import CLOSE, TENANTS, openings, proposals
from tests.fuzz.mutated import SPECS, recorded

LEVELS = st.sampled_from([0, 1, 1, *[2] * 12, 3, 4])
"""Of privacy, as the wire has it: 3 and 4 are no level."""

PADDINGS = st.sampled_from([(), (), (0,), (3, 0), (100,), (127, 0), (128,), (4000,), (0,) * 300])
"""Entries of padding, by their bytes."""


def padding(sizes: tuple[int, ...]) -> bytes:
    return pb.SessionRequest(padding=[bytes(size) for size in sizes]).SerializeToString()


def private(data: bytes, level: int) -> bytes:
    """An `Open` that asks for this privacy."""
    request = pb.SessionRequest.FromString(data)
    request.open.privacy = level  # type: ignore[assignment]  # also unknown ones
    return request.SerializeToString()


@st.composite
def padded(draw: st.DrawFn, frame: bytes) -> bytes:
    """The frame with entries of padding, in front or behind."""
    more = padding(draw(PADDINGS))
    return more + frame if draw(st.booleans()) else frame + more


@st.composite
def opening(draw: st.DrawFn) -> bytes:
    """An `Open` that asks for privacy."""
    request = pb.SessionRequest.FromString(private(draw(openings()), draw(LEVELS)))
    if draw(st.integers(0, 4)) == 0:
        request.open.logprobs = draw(st.sampled_from([0, 1, 5, 20, 21]))
    return request.SerializeToString()


STRANGE = st.one_of(
    st.just(b"\x2a\x00"),  # a filler of earlier versions, and pieces of a message
    st.sampled_from([b"", b"\x05\x12", bytes(60)]).map(lambda data: b"\x22" + bytes([len(data)]) + data),
    proposals(),
    st.just(padding((0,))),
    st.just(padding((100_000,))),
)
"""A frame that has no place anywhere."""


@st.composite
def mixed(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    """Strange frames in half of the streams, among what is sent."""
    if draw(st.booleans()):
        for _ in range(draw(st.sampled_from([1, 1, 2, 200]))):
            events.insert(draw(st.integers(0, len(events))), Send(draw(STRANGE)))
    return events


@st.composite
def streams(draw: st.DrawFn) -> tuple[Event, ...]:
    """An opening and what follows; half of them with something strange among it."""
    rest = draw(st.lists(st.one_of(*(proposals() for _ in range(4)), st.just(CLOSE)), max_size=5))
    events: list[Event] = [Send(draw(padded(frame))) for frame in (draw(opening()), *rest)]
    for _ in range(draw(st.integers(0, 6))):
        events.insert(draw(st.integers(0, len(events))), draw(STEPS))
    return (*draw(mixed(events)), *draw(ENDS))


@st.composite
def honest_streams(draw: st.DrawFn) -> tuple[Event, ...]:
    """What an honest edge said, padded."""
    first, *rest = draw(st.sampled_from(recorded(draw(st.sampled_from(sorted(SPECS))))))
    assert isinstance(first, Send), "a stream begins with its Open"
    events: list[Event] = [Send(private(first.data, draw(LEVELS)))]
    events += [Send(draw(padded(each.data))) if isinstance(each, Send) else each for each in rest]
    return (*draw(mixed(events)), *draw(ENDS))


CASES = st.builds(
    Case,
    st.lists(st.one_of(streams(), honest_streams()), min_size=1, max_size=2).map(tuple),
    tenant=TENANTS,
    time_left=DEADLINES,
    hurried=HURRY,
    squeezed=st.booleans(),
)
