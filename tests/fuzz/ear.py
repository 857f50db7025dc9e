"""A client's ear: joins the frames of one stream to messages, and holds them to the agreed sizes."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from common.errors import ForerunError
from common.messages import Opened, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.rpc.codec import decode_response
from common.rpc.frames import DOWN_BYTES, Joiner
from tests.fuzz.laws import Broken

MOST_JOINED = 1 << 20  # bytes of one message; far above what the tiny target has to say


class Ear:
    """Of one stream. `hear` takes its frames in order and gives the messages that they make whole."""

    def __init__(self) -> None:
        self.level: Privacy | None = None  # that holds, once the session is open; None: the edge knew of none
        self.is_open = False
        self._size = 0  # of all frames, bytes
        self._joiner = Joiner(pb.SessionResponse, MOST_JOINED)

    def hear(self, data: bytes) -> list[ServerMessage]:
        """Raises `Broken` for a frame that no verifier should send."""
        try:
            messages = [
                decode_response(each) for each in self._joiner.take(pb.SessionResponse.FromString(data))
            ]
        except (DecodeError, ForerunError) as error:
            raise Broken(f"what the verifier sent cannot be read: {error}") from error
        for message in messages:
            if isinstance(message, Opened):
                self._opened(message, len(data))
        self._check_size(len(data))
        return messages

    def _opened(self, message: Opened, size: int) -> None:
        self.is_open, self.level, self._size = True, message.privacy, size
        self._joiner.takes_fillers = message.privacy is Privacy.STRICT

    def _check_size(self, size: int) -> None:
        if self.level in (Privacy.PADDED, Privacy.STRICT) and size != self._size:
            raise Broken(f"a frame has {size} bytes where the first had {self._size}")
        if self.is_open and self.level is None and size % DOWN_BYTES:
            raise Broken(f"a frame has {size} bytes, which is no multiple of {DOWN_BYTES}")
