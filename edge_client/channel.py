"""The edge's end of the wire: a channel to one verifier, and the streams on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from common.errors import ForerunError, LocalError, UnavailableError
from common.messages import ClientMessage, ServerMessage
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.rpc.codec import decode_response, encode_request
from common.rpc.describe import Description, decode_description, encode_describe_request
from common.rpc.options import Options, channel_options
from common.rpc.status import to_error

logger = logging.getLogger(__name__)

DESCRIBE_TIMEOUT = 10.0
"""Seconds; a token table of 128k entries takes a slow link a few of them."""

OWN_CONNECTION: Options = (("grpc.use_local_subchannel_pool", 1),)
"""Channels of one process to one address share a connection otherwise; those of two devices cannot."""


class Stream:
    """One `Session` call: `send` never blocks, what comes is handed to `on_message`, the end to `on_lost`.

    `on_lost` is called at most once, with None after an orderly end, and never after `abandon`.
    """

    def __init__(
        self,
        stub: pb_grpc.VerifierServiceStub,
        on_message: Callable[[ServerMessage], None],
        on_lost: Callable[[ForerunError | None], None],
    ) -> None:
        self._outgoing: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
        self._on_message = on_message
        self._on_lost = on_lost
        self._call = stub.Session(self._requests())
        self._reader = asyncio.create_task(self._read())
        self.bytes_up = 0  # serialised messages, gRPC framing excluded
        self.bytes_down = 0

    def send(self, message: ClientMessage) -> None:
        """Encoded here, where a failure is the caller's to see; inside the call it would be lost."""
        self._outgoing.put_nowait(encode_request(message))

    def abandon(self) -> None:
        """Cut it; nothing more is called."""
        self._outgoing.put_nowait(None)
        self._reader.cancel()
        self._call.cancel()

    async def finish(self, patience: float = 1.0) -> None:
        """Let a `Close` leave and the verifier end the call, for at most `patience` seconds."""
        self._outgoing.put_nowait(None)
        self._on_lost = lambda error: None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reader, patience)
        self._call.cancel()

    async def _requests(self) -> AsyncIterator[pb.SessionRequest]:
        while (request := await self._outgoing.get()) is not None:
            self.bytes_up += request.ByteSize()
            yield request

    async def _read(self) -> None:
        lost: ForerunError | None = None
        try:
            async for response in self._call:
                self.bytes_down += response.ByteSize()
                self._on_message(decode_response(response))
        except grpc.aio.AioRpcError as error:
            lost = to_error(error)
        except ForerunError as error:
            self._call.cancel()
            lost = error
        except Exception as error:  # outermost frame of this task: the user must not wait for ever
            logger.exception("! the stream's reader failed")
            self._call.cancel()
            lost = LocalError(f"the stream's reader failed: {error}")
        self._outgoing.put_nowait(None)  # else grpc's task would wait for requests until it is destroyed
        self._on_lost(lost)


class VerifierChannel:
    """A channel to the verifier at `address` (HOST:PORT), without TLS. An async context manager.

    `more` are options of gRPC's beside ours; with `OWN_CONNECTION` it shares none with other channels.
    """

    def __init__(self, address: str, more: Options = ()) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=(*channel_options(), *more))
        self._stub = pb_grpc.VerifierServiceStub(self._channel)

    async def __aenter__(self) -> VerifierChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def describe(
        self, include_vocabulary: bool = False, include_chat_template: bool = False
    ) -> Description:
        """What the verifier serves. Raises `UnavailableError` when it cannot be reached."""
        request = encode_describe_request(include_vocabulary, include_chat_template)
        try:
            response = await self._stub.Describe(request, timeout=DESCRIBE_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            failure = to_error(error)
            if isinstance(failure, UnavailableError):
                failure = UnavailableError(
                    f"the verifier at {self.address} cannot be reached ({failure}); "
                    "is `forerun verify` running there?"
                )
            raise failure from error
        return decode_description(response)

    def open(
        self, on_message: Callable[[ServerMessage], None], on_lost: Callable[[ForerunError | None], None]
    ) -> Stream:
        return Stream(self._stub, on_message, on_lost)
