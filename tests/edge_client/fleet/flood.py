"""A hostile publisher: MQTT 5 by hand, as fast as a socket takes it, without waiting for acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def flood(port: int, messages: Sequence[tuple[str, bytes]], retain: bool = False) -> None:
    """Publish all with QoS 1; returns when the broker has acknowledged them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(packet(0x10, text("MQTT") + bytes([5, 2, 0, 0, 0]) + text("flood")))
    kind, _ = await read(reader)
    assert kind == 0x20
    acknowledged = asyncio.ensure_future(drain(reader, len(messages)))
    for number, (topic, payload) in enumerate(messages, 1):
        body = text(topic) + number.to_bytes(2, "big") + b"\0" + payload
        writer.write(packet(0x33 if retain else 0x32, body))
        if number % 100 == 0:
            await writer.drain()
    await acknowledged
    writer.close()
    await writer.wait_closed()


async def drain(reader: asyncio.StreamReader, count: int) -> None:
    """Read so many packets."""
    for _ in range(count):
        await read(reader)


async def read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """A packet's first byte and its body."""
    kind = (await reader.readexactly(1))[0]
    length = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return kind, await reader.readexactly(length)


def packet(kind: int, body: bytes) -> bytes:
    """With its length, seven bits a byte."""
    found, length = bytearray([kind]), len(body)
    while True:
        found.append(length % 128 | (128 if length > 127 else 0))
        length //= 128
        if not length:
            return bytes(found) + body


def text(found: str) -> bytes:
    """A string of MQTT's."""
    return len(found).to_bytes(2, "big") + found.encode()
