"""A verifier that lies: it describes itself and answers sessions as an attack tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import grpc.aio

from common.pb import verifier_pb2 as pb

Write = Callable[[bytes], Awaitable[None]]
Lie = Callable[[pb.SessionRequest, Write], Awaitable[None]]
"""Answers an `Open`: it gets the request and a way to send serialised responses."""


class Liar:
    """Serves on a free port of loopback. An async context manager.

    `truth` is a real verifier's description.
    """

    def __init__(self, truth: pb.DescribeResponse) -> None:
        self.description = pb.DescribeResponse()
        self.description.CopyFrom(truth)
        self.lie: Lie = silent
        self.num_opened = 0  # sessions that were asked of it
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self._describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
            ),
            "Session": grpc.stream_stream_rpc_method_handler(
                self._session, pb.SessionRequest.FromString, lambda message: message
            ),
        }
        name = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def _describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        answer = pb.DescribeResponse()
        answer.CopyFrom(self.description)
        if not request.include_vocabulary:
            answer.ClearField("vocabulary")
        if not request.include_chat_template:
            answer.ClearField("chat_template")
        return answer

    async def _session(self, requests: AsyncIterator[pb.SessionRequest], context: Any) -> None:
        async for request in requests:
            if request.WhichOneof("message") == "open":
                self.num_opened += 1
                await self.lie(request, context.write)
                return


async def silent(request: pb.SessionRequest, write: Write) -> None:
    """Say nothing."""
    await asyncio.Event().wait()


def opened(request: pb.SessionRequest, **more: Any) -> bytes:
    """What an honest verifier would say first."""
    position = len(request.open.prompt) + len(request.open.committed) - 1
    return response(opened=pb.Opened(position=position, credit=8, privacy=pb.PRIVACY_OFF, **more))


def response(**fields: Any) -> bytes:
    """A response on the wire."""
    return pb.SessionResponse(**fields).SerializeToString()
