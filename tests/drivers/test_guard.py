"""Bytes that are no message, and defects of ours, become a status with a sentence and without our insides."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from cloud_verifier.server.calls import VerifierService
from cloud_verifier.server.interceptor import Guard
from common.errors import LocalError, UserError
from common.wire.status import to_error
from tests.support.tiny import running

pytestmark = pytest.mark.grpc

NO_MESSAGE = b"\xff\xff\xff"
METHODS = {
    "Session": ("/forerun.v1.VerifierService/Session", True),
    "Describe": ("/forerun.v1.VerifierService/Describe", False),
    "health, one answer": ("/grpc.health.v1.Health/Check", False),
    "health, a stream": ("/grpc.health.v1.Health/Watch", True),
    "reflection": ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", True),
}


def same(data: bytes) -> bytes:
    return data


async def ask(address: str, path: str, stream: bool, data: bytes) -> grpc.aio.AioRpcError:
    """How the call with these bytes ends."""
    async with grpc.aio.insecure_channel(address) as channel:
        many = channel.stream_stream(path, request_serializer=same, response_deserializer=same)
        one = channel.unary_unary(path, request_serializer=same, response_deserializer=same)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (many(iter([data])).read() if stream else one(data))
    return caught.value


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_message_are_an_invalid_argument(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as system:
        status = await ask(system.address, *METHODS[method], NO_MESSAGE)
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert status.details() == ("a message of 3 bytes cannot be read: it is not the protobuf of this method")
    assert isinstance(to_error(status), LocalError)  # the client's own fault
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("method", ["Session", "Describe"])
async def test_a_defect_becomes_a_status_without_details_of_the_code(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def session(self: object, requests: AsyncIterator[Any], context: object) -> AsyncIterator[Any]:
        async for _ in requests:  # else gRPC's client may fail to send before it hears the status
            yield _secret()

    async def describe(self: object, request: object, context: object) -> Any:
        return _secret()

    monkeypatch.setattr(VerifierService, "Session", session)
    monkeypatch.setattr(VerifierService, "Describe", describe)
    async with running() as system:
        status = await ask(system.address, *METHODS[method], b"")
    assert status.code() is grpc.StatusCode.INTERNAL
    assert status.details() == "a defect of the verifier; its log has more"
    assert "secret" in caplog.text


class Details(grpc.HandlerCallDetails):
    method = "/a.Service/Method"
    invocation_metadata = ()


DETAILS = Details()


class GoneContext:
    """Of a call whose client has gone: gRPC can send nothing on it."""

    async def abort(self, *status: object) -> None:
        raise grpc.aio.InternalError("Failed to send the status")


async def _refusing(requests: object, context: object) -> AsyncIterator[Any]:
    for _ in "a generator":
        raise UserError("not this one")
    yield


async def _writing(request: object, context: object) -> Any:
    raise grpc.aio.InternalError("Failed to write a message")


async def test_a_client_that_went_while_it_was_answered_is_no_defect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may go at any moment; were it an error, anybody could fill the log with tracebacks."""

    async def continuation(details: object) -> Any:
        return handler

    guard, gone = Guard({}), GoneContext()
    handler: Any = grpc.stream_stream_rpc_method_handler(_refusing, same)
    guarded = await guard.intercept_service(continuation, DETAILS)
    with pytest.raises(asyncio.CancelledError):
        await anext(guarded.stream_stream(None, gone))
    handler = grpc.unary_unary_rpc_method_handler(_writing, same)
    guarded = await guard.intercept_service(continuation, DETAILS)
    with pytest.raises(asyncio.CancelledError):
        await guarded.unary_unary(b"one", gone)
    assert not caplog.records


def _secret() -> Any:
    raise RuntimeError("secret")
