"""Messages in parts, among fillers and padding (rule 21): as an edge cuts them, and as none does."""

from __future__ import annotations

from hypothesis import strategies as st

from common.pb import verifier_pb2 as pb
from common.rpc.bounds import MAX_JOINED_REQUEST_BYTES
from common.rpc.frames import MAX_FRAME_BYTES, UP_BYTES, varint
from tests.fuzz.cases import DEADLINES, ENDS, HURRY, STEPS, Case, Event, Send
from tests.fuzz.meaningless import CLOSE, TENANTS, openings, proposals
from tests.fuzz.mutated import SPECS, recorded

FILLER = pb.SessionRequest(filler=pb.Filler()).SerializeToString()
PADDING_TAG = b"\x7a"  # field 15, of a length
LEVELS = st.sampled_from([0, 1, 1, *[2] * 12, 3, 4])
"""Of privacy, as the wire has it. Strict ones are few: on a live server they take their time to end."""

PIECES = st.sampled_from([1, 2, 3, 7, 60, UP_BYTES - 10, 500, MAX_FRAME_BYTES])
LENGTHS = st.sampled_from(
    [0, 1, 2**7, 2**14, MAX_JOINED_REQUEST_BYTES, MAX_JOINED_REQUEST_BYTES + 1, 2**35 - 1]
)


def part(data: bytes) -> bytes:
    return pb.SessionRequest(part=pb.Part(data=data)).SerializeToString()


def cut(data: bytes, size: int) -> list[bytes]:
    """A message in parts of `size` bytes."""
    wire = varint(len(data)) + data
    return [part(wire[at : at + size]) for at in range(0, len(wire), size)]


def private(opening: Event, level: int) -> Event:
    """An `Open` that asks for this privacy."""
    assert isinstance(opening, Send), "a stream begins with its Open"
    request = pb.SessionRequest.FromString(opening.data)
    request.open.privacy = level  # type: ignore[assignment]  # also unknown ones
    return Send(request.SerializeToString())


@st.composite
def padded(draw: st.DrawFn, frame: bytes) -> bytes:
    """The frame with entries of padding, in front or behind."""
    sizes = draw(st.sampled_from([(), (), (0,), (3, 0), (100,), (127, 0), (128,), (4000,), (0,) * 300]))
    padding = b"".join(PADDING_TAG + varint(size) + bytes(size) for size in sizes)
    return padding + frame if draw(st.booleans()) else frame + padding


@st.composite
def opening(draw: st.DrawFn) -> bytes:
    """An `Open` that asks for privacy."""
    request = pb.SessionRequest.FromString(draw(openings()))
    request.open.privacy = draw(LEVELS)  # type: ignore[assignment]  # also unknown ones
    if draw(st.integers(0, 4)) == 0:
        request.open.logprobs = draw(st.sampled_from([0, 1, 5, 20, 21]))
    return request.SerializeToString()


@st.composite
def in_parts(draw: st.DrawFn, messages: list[bytes], odd_ones: int = 12) -> list[bytes]:
    """Frames that together are these messages; before one of so many the length is another."""
    wire = b""
    for message in messages:
        odd = draw(st.integers(1, odd_ones)) == 1
        wire += (varint(draw(LENGTHS)) if odd else varint(len(message))) + message
    frames = list[bytes]()
    while wire:
        size = draw(PIECES)
        frames.append(draw(padded(part(wire[:size]))))
        wire = wire[size:]
        if len(frames) > 40:  # by single bytes is shown; the rest comes at once
            size = MAX_FRAME_BYTES
            frames += [part(wire[at : at + size]) for at in range(0, len(wire), size)]
            break
    return frames


STRANGE = st.one_of(
    st.just(FILLER),
    st.just(FILLER),
    st.just(part(b"")),
    st.sampled_from([MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, 100_000]).map(lambda size: part(bytes(size))),
    st.just(part(varint(len(FILLER)) + FILLER)),
    st.just(part(varint(len(part(b"x"))) + part(b"x"))),
    st.just(part(b"\x80" * 5)),
    st.just(part(b"\xff" * 30)),
    st.binary(max_size=40).map(part),
    proposals(),
    st.just(PADDING_TAG + b"\x00"),
    st.just(PADDING_TAG + varint(MAX_FRAME_BYTES + 1) + bytes(MAX_FRAME_BYTES + 1) + FILLER),
)
"""A frame that has no place among the parts of a message, or none anywhere."""


@st.composite
def streams(draw: st.DrawFn) -> tuple[Event, ...]:
    """An opening and what follows, whole or in parts; half of them with something strange among it."""
    first = draw(opening())
    rest = draw(st.lists(st.one_of(*(proposals() for _ in range(4)), st.just(CLOSE)), max_size=5))
    if draw(st.integers(0, 3)):
        frames = [draw(padded(first)), *draw(in_parts(rest))]
    else:
        frames = draw(in_parts([first, *rest]))
    events: list[Event] = [Send(frame) for frame in frames]
    for _ in range(draw(st.integers(0, 6))):
        events.insert(draw(st.integers(0, len(events))), draw(STEPS))
    return (*draw(mixed(events)), *draw(ENDS))


@st.composite
def mixed(draw: st.DrawFn, events: list[Event]) -> list[Event]:
    """Half of them with something strange among it."""
    if draw(st.booleans()):
        for _ in range(draw(st.sampled_from([1, 1, 2, 200]))):
            events.insert(draw(st.integers(0, len(events))), Send(draw(STRANGE)))
    return events


@st.composite
def honest_streams(draw: st.DrawFn) -> tuple[Event, ...]:
    """What an honest edge said, cut into parts."""
    first, *rest = draw(st.sampled_from(recorded(draw(st.sampled_from(sorted(SPECS))))))
    events = [private(first, draw(LEVELS))]
    for event in rest:
        frames = draw(in_parts([event.data], odd_ones=50)) if isinstance(event, Send) else None
        events += [event] if frames is None else map(Send, frames)
    return (*draw(mixed(events)), *draw(ENDS))


CASES = st.builds(
    Case,
    st.lists(st.one_of(streams(), honest_streams()), min_size=1, max_size=2).map(tuple),
    tenant=TENANTS,
    time_left=DEADLINES,
    hurried=HURRY,
    squeezed=st.booleans(),
)
