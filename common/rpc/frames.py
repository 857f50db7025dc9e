"""Messages as frames of one size, and back (rule 21 of docs/protocol.md).

A `Sender` holds what is to leave on one direction of a stream and tells what may leave now; a `Joiner` takes
frames and tells what messages they were. Neither has a clock: `now` is in seconds, of any clock that both
calls of one sender share.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from common.cadence import Cadence
from common.errors import LocalError, PeerError
from common.messages import Open
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.rpc.options import MAX_MESSAGE_BYTES

UP_BYTES, DOWN_BYTES = 128, 64
"""Under the adaptive policy 99 of 100 Proposes of the demo pair had at most 95 bytes, and the longest of 597
Commits 56 (docs/privacy.md). Its ids have two bytes, those of a 128k vocabulary a third, for which this
leaves room: a tree of 16 nodes has 94 bytes, a Commit of six tokens 45."""

DRAWN_UP_BYTES = 1024
"""Where drafts bring the distributions that they were drawn from: eight nodes of 40 tokens each."""

STRICT_UP, STRICT_DOWN = 4, 2
"""Times as long under a cadence, where one frame has to hold what comes in a turn: at 12 ms a token the demo
pair proposes 240 bytes in 35 ms, and who can send less waits for ever longer."""

TOLD_TOKENS = 6
"""Of one Commit that fit where log-probabilities were asked for."""

LEAST_OPEN_BYTES = 1024
"""A prompt of some 300 tokens. Longer ones are told apart by powers of two."""

MAX_FRAME_BYTES = 4096
"""Of a part or a filler; the other side may have another frame size, and not any."""

LENGTH_BYTES = 5
"""Of a length before a message in parts; a longer varint means no length that is allowed."""

M = TypeVar("M", pb.SessionRequest, pb.SessionResponse)


def up_size(request: Open, level: Privacy) -> int:
    """Of frames to the verifier, by what the stream's `Open` asks for and nothing else."""
    drawn = request.acceptance.draws(request.sampling.greedy)
    size = DRAWN_UP_BYTES if drawn else UP_BYTES
    return STRICT_UP * size if level is Privacy.STRICT else size


def down_size(request: Open, level: Privacy) -> int:
    """Of frames to the edge, likewise."""
    if request.logprobs is None:
        size = DOWN_BYTES
    else:
        least = DOWN_BYTES + TOLD_TOKENS * (4 + 9 * request.logprobs)  # bytes of a token and its alternatives
        size = 1 << (least - 1).bit_length()
    return STRICT_DOWN * size if level is Privacy.STRICT else size


def varint_size(number: int) -> int:
    """Seven bits a byte."""
    return max(1, (number.bit_length() + 6) // 7)


def fits(num_bytes: int, size: int) -> bool:
    """Whether a message of so many bytes can be padded to `size`: the least padding takes two bytes."""
    return num_bytes == size or num_bytes <= size - 2


def member(frame: pb.SessionRequest | pb.SessionResponse) -> object:
    """What the frame holds; None if nothing that is known."""
    kind = frame.WhichOneof("message")
    return None if kind is None else getattr(frame, kind)


def pad(message: M, size: int) -> M:
    """Bring the message to `size` bytes. Raises `LocalError` if it does not fit."""
    num_bytes = message.ByteSize()
    if not fits(num_bytes, size):
        raise LocalError(f"a message of {num_bytes} bytes cannot be padded to {size}")
    gap = size - num_bytes
    if not gap:
        return message
    if (length := _entry(gap)) is None:  # one byte more would make its own length a byte longer
        message.padding.append(b"")
        length = _entry(gap - 2)
        assert length is not None, "only single gaps cannot be filled by one entry"
    message.padding.append(bytes(length))
    return message


def pad_up(message: M, unit: int) -> M:
    """Bring the message to the least multiple of `unit` that it fits."""
    size = -(-message.ByteSize() // unit) * unit
    return pad(message, size if fits(message.ByteSize(), size) else size + unit)


def pad_open(message: M) -> M:
    """Bring it to a power of two, of which only the order of magnitude of a prompt can be told."""
    size = LEAST_OPEN_BYTES
    while size < MAX_MESSAGE_BYTES and not fits(message.ByteSize(), size):
        size *= 2
    return pad(message, size) if fits(message.ByteSize(), size) else message


class Sender(Generic[M]):
    """What is to leave on one direction of one stream.

    Its driver calls `put` for each message, then sends what `take` gives, and calls that again at `next_at`.
    `begin` tells what this side asks for, `hold` what has been agreed. Before that nothing is cut into
    parts, which an old peer would not understand; and who asks for strict sends nothing until it knows when.
    """

    def __init__(self, kind: type[M], size: int) -> None:
        self.level = Privacy.OFF
        self.num_frames = 0  # that left in slots
        self._kind: type[M] = kind
        self._whole = True  # no parts
        self._waits = False  # for `hold`
        self._cadence: Cadence | None = None
        self._messages: deque[M] = deque()
        self._bytes = bytearray()  # of messages on their way in parts
        self.size = size

    @property
    def size(self) -> int:
        """Of every frame, bytes."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = size
        self._room = next(length for length in range(size, 0, -1) if fits(_part_size(length), size))

    def begin(self, asked: Privacy) -> None:
        """What this side wants, of a peer that has not answered yet."""
        self.level, self._waits = asked, asked is Privacy.STRICT

    def hold(self, level: Privacy, now: float, interval: float = 0.0, *, parts: bool = True) -> None:
        """What holds from here on; the first slot of a strict one is now, the others come every `interval`
        seconds. Without `parts` the peer does not know them, and what is too long becomes a frame of several
        sizes."""
        self.level, self._waits, self._whole = level, False, not parts
        self._cadence = Cadence(interval, now - interval) if level is Privacy.STRICT else None

    def put(self, message: M) -> None:
        """It is to leave when its turn comes."""
        if self._cadence is None:
            self._messages.append(message)
        else:
            self._pack(message)

    @property
    def next_at(self) -> float | None:
        """When `take` gives something even if nothing was put; None for never."""
        return None if self._cadence is None else self._cadence.next_at

    @property
    def has_room(self) -> bool:
        """Whether another message could leave in the next slot, at least its beginning."""
        return not self._messages and len(self._bytes) < self._room

    @property
    def is_empty(self) -> bool:
        """Whether all that was put has left."""
        return not self._messages and not self._bytes

    def take(self, now: float) -> list[M]:
        """What may leave now: all there is, or under a cadence one frame at most."""
        if self._waits:
            return []
        if self._cadence is not None:
            return self._slot(now)
        frames = [frame for message in self._messages for frame in self._frames(message)]
        self._messages.clear()
        return frames

    def skip(self, now: float) -> None:
        """As `take` under a cadence, where nothing could be sent: the slot is lost, what waits is not."""
        if self._cadence is not None:
            self._cadence.due(now)

    def _slot(self, now: float) -> list[M]:
        assert self._cadence is not None, "asked for by `take` only"
        if not self._cadence.due(now):
            return []
        while self._messages:  # from before there were slots
            self._pack(self._messages.popleft())
        self.num_frames += 1
        return [self._part() if self._bytes else self._filler()]

    def _frames(self, message: M) -> list[M]:
        if self.level is Privacy.OFF:
            return [message]
        if fits(message.ByteSize(), self._size):
            return [pad(message, self._size)]
        if self._whole:
            return [pad_up(message, self._size)]
        self._pack(message)
        frames = list[M]()
        while self._bytes:
            frames.append(self._part())
        return frames

    def _pack(self, message: M) -> None:
        wire = message.SerializeToString()
        self._bytes += varint(len(wire)) + wire

    def _part(self) -> M:
        """As much of the bytes that wait as one frame takes."""
        length = min(len(self._bytes), self._room)
        if not fits(_part_size(length), self._size):
            length -= 1  # this one has to wait for the next frame: padding takes two
        frame: M = self._kind()
        frame.part.data = bytes(self._bytes[:length])
        del self._bytes[:length]
        return pad(frame, self._size)

    def _filler(self) -> M:
        frame: M = self._kind()
        frame.filler.SetInParent()
        return pad(frame, self._size)


class Joiner(Generic[M]):
    """Frames of one direction back to messages. `limit`: bytes that one message in parts may have."""

    def __init__(self, kind: type[M], limit: int) -> None:
        self.takes_fillers = False  # they are a breach where no cadence was agreed on
        self._kind: type[M] = kind
        self._limit = limit
        self._bytes = bytearray()

    def take(self, frame: M) -> list[M]:
        """The messages that are whole now: itself, or none or several that it brings the end of.

        Raises `PeerError` for a part that cannot belong to what came before, and a filler that should not be.
        """
        what = frame.WhichOneof("message")
        if what == "filler":
            self._check_filler(frame)
            return []
        if what == "part":
            if len(frame.part.data) > MAX_FRAME_BYTES:
                raise PeerError(
                    f"a part has {len(frame.part.data)} bytes; at most {MAX_FRAME_BYTES} may come"
                )
            self._bytes += frame.part.data
            return self._whole()
        if self._bytes:
            raise PeerError("a whole message came between the parts of another")
        return [frame]

    def _check_filler(self, frame: M) -> None:
        if not self.takes_fillers:
            raise PeerError("a filler came on a stream whose privacy is not strict")
        if frame.ByteSize() > MAX_FRAME_BYTES:
            raise PeerError(f"a filler has {frame.ByteSize()} bytes; at most {MAX_FRAME_BYTES} are allowed")

    def _whole(self) -> list[M]:
        found, at = list[M](), 0
        while (head := self._length(at)) is not None:
            start, length = head
            if len(self._bytes) < start + length:
                break
            at = start + length
            found.append(self._parse(bytes(self._bytes[start:at])))
        del self._bytes[:at]
        return found

    def _parse(self, wire: bytes) -> M:
        try:
            message: M = self._kind.FromString(wire)
        except DecodeError:
            raise PeerError("what came in parts is no message") from None
        if message.WhichOneof("message") in ("part", "filler"):
            raise PeerError("a part or a filler came within a part")
        return message

    def _length(self, at: int) -> tuple[int, int] | None:
        """Where the message behind the length at `at` begins, and how long it is; None if more must come."""
        length = 0
        for index, byte in enumerate(self._bytes[at : at + LENGTH_BYTES]):
            length |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if length > self._limit:
                    raise PeerError(f"a message in parts has {length} bytes; at most {self._limit} may come")
                return at + index + 1, length
        if len(self._bytes) - at >= LENGTH_BYTES:
            raise PeerError(f"a length of more than {LENGTH_BYTES} bytes came before a message in parts")
        return None


def _entry(gap: int) -> int | None:
    """How long the one entry of padding is that takes `gap` bytes with its tag and length; None if there is
    no such."""
    for length_bytes in (1, 2, 3, 4):
        length = gap - 1 - length_bytes
        if length >= 0 and varint_size(length) == length_bytes:
            return length
    return None


def _part_size(length: int) -> int:
    """Bytes of the envelope with a part of so many."""
    inner = 1 + varint_size(length) + length if length else 0
    return 1 + varint_size(inner) + inner


def varint(number: int) -> bytes:
    """As protobuf writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
