"""Bytes that no client of ours writes: noise, messages cut, bent and spliced, fields of the wrong type."""

from hypothesis import strategies as st

from common.pb import verifier_pb2 as pb
from common.wire.grpc_options import MAX_MESSAGE_BYTES
from tests.fuzz.cases import DEADLINES, ENDS, HURRY, Case, Event, Listen, Send
from tests.fuzz.meaningless import CLOSE, openings, proposals

VALID = st.one_of(openings(), proposals(), st.just(CLOSE))
"""What garbled messages are made of."""

HUGE_VARINTS = st.sampled_from(
    [b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xff" * 30, b"\x80" * 9 + b"\x00", b"\x80"]
)
WIRE_TYPES = st.integers(0, 7)  # 3 and 4 are groups, 6 and 7 nothing


@st.composite
def cut(draw: st.DrawFn) -> bytes:
    data = draw(VALID)
    return data[: draw(st.integers(0, len(data)))]


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """Some of its bits are flipped."""
    data = bytearray(draw(VALID))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, 8 * len(data) - 1)))
        if data:
            data[at // 8] ^= 1 << at % 8
    return bytes(data)


@st.composite
def spliced(draw: st.DrawFn) -> bytes:
    """The front of one message and the back of another."""
    one, other = draw(VALID), draw(VALID)
    return one[: draw(st.integers(0, len(one)))] + other[draw(st.integers(0, len(other))) :]


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    """Tags of any number and type, each with a payload that may be of another type; some of them nested."""
    data = b""
    for _ in range(draw(st.integers(1, 6))):
        number, kind = draw(st.integers(0, 15)), draw(WIRE_TYPES)
        payload = draw(st.one_of(HUGE_VARINTS, st.binary(max_size=12), VALID))
        length = draw(st.sampled_from([b"", bytes([len(payload) % 128]), b"\x7f", b"\xff\xff\xff\xff\x0f"]))
        data += bytes([number << 3 | kind]) + length + payload
    return draw(
        st.sampled_from([data, bytes([0x0A, len(data) % 128]) + data, bytes([0x12, len(data) % 128]) + data])
    )


def nested(depth: int, tag: int) -> bytes:
    """Groups within groups, which are refused where they get too deep."""
    return bytes([tag << 3 | 3]) * depth + bytes([tag << 3 | 4]) * depth


@st.composite
def repeated(draw: st.DrawFn) -> bytes:
    """One small field many thousand times: an unpacked token, a bias, a whole member of the oneof."""
    token, bias = b"\x0a\x02\x08\x05", b"\x0a\x04\x12\x02\x42\x00"
    unit = draw(st.sampled_from([token, bias, b"\x12\x02\x08\x01", b"\x1a\x00", b"\x7a\x00"]))
    return unit * draw(st.sampled_from([300, 2_000, 20_000]))


def oversized(extra: int) -> bytes:
    """An `Open` of so many bytes more than a message may have."""
    return pb.SessionRequest(open=pb.Open(fingerprint=bytes(MAX_MESSAGE_BYTES + extra))).SerializeToString()


RARE = st.integers(0, 150).flatmap(
    lambda n: st.builds(oversized, st.sampled_from([-100, 0, 5_000_000])) if n == 77 else repeated()
)
GARBLED: st.SearchStrategy[Event] = st.one_of(
    st.binary(max_size=200),
    cut(),
    bent(),
    bent(),
    spliced(),
    fields(),
    st.builds(nested, st.sampled_from([1, 90, 200, 5_000]), st.integers(1, 15)),
    RARE,
).map(Send)
METHODS = st.sampled_from(["Session"] * 6 + ["Describe", "Check", "Watch", "Reflection", "Nothing"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[Event, ...]:
    """Half of them begin as they should, so that what is garbled meets an open session."""
    first: list[Event] = [Send(draw(VALID))] if draw(st.booleans()) else []
    rest: list[Event] = draw(st.lists(st.one_of(GARBLED, GARBLED, st.just(Listen())), min_size=1, max_size=4))
    return (*first, *rest, *draw(ENDS))


CASES = st.builds(
    Case,
    st.lists(streams(), min_size=1, max_size=2).map(tuple),
    time_left=DEADLINES,
    hurried=HURRY,
    method=METHODS,
    squeezed=st.booleans(),
)
