"""Attacks on a verifier. Each is a client that does what it likes; what must hold is in `test_attacks`."""

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio

from common.wire.status import Status
from edge_client.network.client_tls import TlsSettings
from tests.attacks.stages import VerifierStage, expect
from tests.drivers.test_tokens import BAD_TOKENS
from tests.fuzz.wire import OVER, UNHEARD
from tests.support.raw_http2 import SESSION

Code = grpc.StatusCode
DESCRIBE, CHECK = b"/forerun.v1.VerifierService/Describe", b"/grpc.health.v1.Health/Check"
EMPTY_PADDING = b"\x7a\x00"
MIB = 1 << 20
REFUSED = (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)

SLOW_SCHEMA = 'start: %json {"type":"integer","multipleOf":9999991}'
"""A grammar that takes gigabytes to compile."""


async def told(
    channel: grpc.aio.Channel,
    *messages: bytes,
    path: bytes = SESSION,
    metadata: Any = (),
    squeezed: bool = False,
    patience: float = 15.0,
    stays: bool = False,
) -> Status:
    """One call of raw messages, to its end; DEADLINE_EXCEEDED if that does not come.

    With `stays` the client keeps its half of the stream open, as a session needs it. A call is made again if
    gRPC's client has lost its status.
    """
    compression = grpc.Compression.Gzip if squeezed else None
    method: Any = channel.stream_stream(path.decode())
    status = UNHEARD
    for _ in range(5):
        call = method(metadata=metadata, compression=compression, timeout=patience)
        with contextlib.suppress(*OVER):
            for message in messages:
                await call.write(message)
            if not stays:
                await call.done_writing()
        with contextlib.suppress(*OVER):
            async for _ in call:
                pass
        details, trailers = await call.details(), await call.trailing_metadata()
        status = Status(await call.code(), details or "", tuple(trailers or ()))
        if status != UNHEARD:
            break
    return status


async def compressed_padding(stage: VerifierStage) -> None:
    """Messages of 8 MiB that are four million empty entries: 8 KB on the wire each."""
    bomb = EMPTY_PADDING * (8 * MIB // len(EMPTY_PADDING) - 8)
    async with stage.channel() as channel:
        for squeezed in (True, False):
            calls = [told(channel, bomb, metadata=stage.metadata(), squeezed=squeezed) for _ in range(24)]
            for status in await asyncio.gather(*calls):
                expect(status.code is not Code.OK, "a message of 8 MiB of padding was taken")
        for path in (CHECK, DESCRIBE):
            await asyncio.gather(*(told(channel, bomb, path=path, squeezed=True) for _ in range(24)))
    async with stage.channel() as channel:
        metadata, session = stage.metadata(), (stage.opening(), *[bomb] * 4)
        inside = [told(channel, *session, metadata=metadata, squeezed=True, stays=True) for _ in range(2)]
        await asyncio.gather(*inside)


async def slow_grammars(stage: VerifierStage) -> None:
    """Seven streams with a schema that takes gigabytes to compile; each hangs up after a second."""
    async with stage.channel() as channel:
        await asyncio.gather(
            *(told(channel, stage.opening(grammar=SLOW_SCHEMA), patience=1.0, stays=True) for _ in range(7))
        )
        await asyncio.sleep(8.0)
        status = await told(channel, stage.opening(tokens=4, grammar="start: /[a-z]+/"), stays=True)
    expect(status.code is Code.OK, f"an honest grammar was answered {status.code.name}: {status.details}")


async def forged_tokens(stage: VerifierStage) -> None:
    """Tokens that are expired, foreign, unsigned or signed with what everybody knows."""
    assert stage.town is not None, "the stage asks for tokens"
    async with stage.channel(TlsSettings(stage.town.folder / "ca.crt")) as channel:
        for name, (make, _) in BAD_TOKENS.items():
            metadata = (("authorization", f"Bearer {make(stage.town)}"),)
            status = await told(channel, stage.opening(tokens=2), metadata=metadata)
            expect(status.code in REFUSED, f"a call whose token was {name} was answered {status.code.name}")
