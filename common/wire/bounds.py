"""Check received values against the limits of the wire (docs/protocol.md, rule 15).

The limits bound the memory and time that one message can cost. Scheduler and session check the limits of a
model or a session. Numbers that protobuf's own type bounds (a uint32 in microseconds) have no entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.acceptance import MAX_TOKENS as MAX_TOKENS_OF_A_DRAFT
from common.errors import PeerError
from common.messages import MAX_NODES as MAX_NODES_PER_PROPOSE

MAX_TOKEN_ID = 2**31 - 1
"""Engines hold token ids as int32; the largest vocabularies have 2^18 entries."""

MAX_POSITION = 2**31 - 1
"""Engines hold positions as int32."""

MAX_WAIT_US = 10_000_000
"""No user waits for longer for one step."""

MAX_PROMPT_TOKENS = 1_000_000
"""The longest contexts served today have about a million positions."""

MAX_COMMITTED_TOKENS = 1_000_000
"""Same as the prompt's limit; both at once fit `grpc_options.MAX_MESSAGE_BYTES` up to token id 2^28."""

MAX_NODES = MAX_NODES_PER_PROPOSE
"""Nodes of one Propose. A step evaluates tens of nodes for a session; more ahead of it would not be used."""

MAX_PARENT_DELTA = 65_535
"""Ids back to a parent: 256 messages of 256 nodes. Earlier nodes are committed or dead (rule 3)."""

MAX_DRAFT_TOKENS = MAX_TOKENS_OF_A_DRAFT
"""Tokens of one distribution; with `MAX_NODES` of them a Propose has 16,384 tokens, some 70 kB."""

MAX_COMMIT_TOKENS = 4096
"""Tokens of one Commit. A step commits one path of the tree; an edge slow to read may get several."""

MAX_CREDIT = 65_535
"""Live nodes of one session; a parent delta then reaches every id in use."""

MAX_PADDING = 2
"""Entries of padding: one cannot fill every gap (rule 21)."""

TOO_MUCH_PADDING = f"a message has more than {MAX_PADDING} entries of padding; none needs more"

MAX_FINGERPRINT_BYTES = 64
"""The longest digest in use (SHA-512)."""

MAX_MODEL_CHARS = 256
"""Longer than any model name with its organisation."""

MAX_SESSION_ID_CHARS = 128
"""Limit of a session id, which appears in every log line of its session."""

MAX_VERSION_CHARS = 64
"""Longer than the version of any release, or of any build with a commit."""

MAX_VOCAB_SIZE = 2**22
"""Sixteen times the largest vocabulary in use."""

MAX_PIECE_BYTES = 4096
"""One token's text; the longest known are runs of a thousand spaces."""

MAX_TEMPLATE_BYTES = 2**18
"""UTF-8 bytes of a chat template; the longest known have some 30 kB."""

MAX_STEP_TIMES = 256
"""Sizes of a step with a time of their own; few are measured."""

MAX_ACCEPTANCE_RULES = 64
"""There are eight, and later versions may have more."""

MAX_EOS_TOKENS = 128
"""Same as `common.sampling.MAX_STOP_TOKENS`; models have one to five."""


def in_range(field: str, value: int, low: int, high: int) -> int:
    """Return `value`. Raises `PeerError` when it lies outside [low, high]."""
    if not low <= value <= high:
        raise PeerError(f"{field} is {value}; it must lie in [{low}, {high}]")
    return value


def count(field: str, number: int, low: int, high: int, unit: str = "entries") -> int:
    """Return the length `number` of a field. Raises `PeerError` when it lies outside [low, high]."""
    if not low <= number <= high:
        allowed = str(low) if low == high else f"{low} to {high}"
        raise PeerError(f"{field} has {number} {unit}; there must be {allowed}")
    return number


def tokens(field: str, values: Sequence[int], low: int, high: int) -> tuple[int, ...]:
    """Return `low` to `high` token ids of a repeated field. Raises `PeerError`.

    The length is checked before anything is copied. `values` are unsigned by protobuf's type.
    """
    if not low <= len(values) <= high:
        count(field, len(values), low, high)
    ids = tuple(values)
    if ids and max(ids) > MAX_TOKEN_ID:
        in_range(f"{field} token id", max(ids), 0, MAX_TOKEN_ID)
    return ids


def text(field: str, value: str, high: int) -> str:
    """Return a string for logs of at most `high` printable characters. Raises `PeerError`."""
    count(field, len(value), 0, high, "characters")
    if not value.isprintable():
        raise PeerError(f"{field} is {value!r}; only printable characters are allowed")
    return value


def model_name(given: str) -> str:
    """Return a file's or folder's name as a model's name that `text` accepts. A name of a file may hold bytes
    that are no text, and line ends."""
    return "".join(char if char.isprintable() else "\ufffd" for char in given[:MAX_MODEL_CHARS])


def page(field: str, value: str, high: int) -> str:
    """Return a string of at most `high` bytes of UTF-8, which is never logged. Raises `PeerError`."""
    count(field, len(value.encode()), 0, high, "bytes")
    return value


def blob(field: str, value: bytes, high: int) -> bytes:
    """Return at most `high` bytes. Raises `PeerError`."""
    count(field, len(value), 0, high, "bytes")
    return value
