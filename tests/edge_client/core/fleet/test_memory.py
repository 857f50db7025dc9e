"""What is remembered comes back; a damaged file is named as one."""

from __future__ import annotations

import pytest

from edge_client.core.fleet.commands import Remembered
from edge_client.core.fleet.memory import Memory
from edge_client.core.fleet.payloads import Outcome
from edge_client.core.fleet.record import SchemaError
from edge_client.core.fleet.standing import Stream
from tests.edge_client.core.fleet.signed import config

FULL = Memory(
    12,
    1.5e9,
    {Stream.DEVICE: 3, Stream.KILL: 1},
    {Stream.DEVICE: config(3)},
    {"a1": Remembered(Outcome.DONE, 1.6e9), "a2": Remembered(None, 1.6e9)},
)


@pytest.mark.parametrize("memory", [Memory(), FULL])
def test_a_memory_is_read_as_it_was_written(memory: Memory) -> None:
    assert Memory.from_bytes(memory.to_bytes()) == memory


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"forerun fleet state", b"something else"),
        (b'"version":1', b'"version":2'),
        (b'"epoch":12', b'"epoch":-1'),
        (b'"kill"', b'"kind"'),
        (b'"done"', b'"dome"'),
        (b'"commands"', b'"comments"'),
        (b"{", b"["),
    ],
)
def test_a_damaged_file_is_refused(old: bytes, new: bytes) -> None:
    payload = FULL.to_bytes()
    assert old in payload
    with pytest.raises(SchemaError):
        Memory.from_bytes(payload.replace(old, new))
