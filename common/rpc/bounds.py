"""What a receiver takes from the wire at most (docs/protocol.md, rule 15), and sentences that refuse more.

The limits keep one message from costing unbounded memory or time; they do not tell what fits a model or a
session, which the scheduler and the session check. Numbers that protobuf's own type bounds (a uint32 in
microseconds) have no entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.draft import MAX_TOKENS as MAX_TOKENS_OF_A_DRAFT
from common.errors import PeerError
from common.messages import MAX_NODES as MAX_NODES_PER_PROPOSE

MAX_TOKEN_ID = 2**31 - 1
"""Engines hold token ids as int32; the largest vocabularies have 2^18 entries."""

MAX_POSITION = 2**31 - 1
"""Engines hold positions as int32."""

MAX_PROMPT_TOKENS = 1_000_000
"""The longest contexts served today have about a million positions."""

MAX_COMMITTED_TOKENS = 1_000_000
"""As the prompt; both at once fit `options.MAX_MESSAGE_BYTES` up to token id 2^28."""

MAX_NODES = MAX_NODES_PER_PROPOSE
"""Nodes of one Propose. A step evaluates tens of nodes for a session; more ahead of it would not be used."""

MAX_PARENT_DELTA = 65_535
"""Ids back to a parent: 256 messages of 256 nodes. What lies further back is committed or dead (rule 3)."""

MAX_DRAFT_TOKENS = MAX_TOKENS_OF_A_DRAFT
"""Of one distribution; with `MAX_NODES` of them a Propose has 16,384 tokens, some 70 kB."""

MAX_COMMIT_TOKENS = 4096
"""Tokens of one Commit. A step commits one path of the tree; an edge slow to read may get several."""

MAX_CREDIT = 65_535
"""Live nodes of one session: no id still in use is then out of a parent delta's reach."""

MAX_FINGERPRINT_BYTES = 64
"""The longest digest in use (SHA-512)."""

MAX_MODEL_CHARS = 256
"""Longer than any model name with its organisation."""

MAX_SESSION_ID_CHARS = 128
"""It stands in every log line of its session."""

MAX_VERSION_CHARS = 64
"""A release's name is shorter, a build's with a commit in it too."""

MAX_VOCAB_SIZE = 2**22
"""Sixteen times the largest vocabulary in use."""

MAX_PIECE_BYTES = 4096
"""One token's text; the longest known are runs of a thousand spaces."""

MAX_TEMPLATE_BYTES = 2**18
"""Of a chat template, in UTF-8; the longest known have some 30 kB."""

INTERVALS_US = (1_000, 10_000_000)
"""Of a cadence: a frame a millisecond is 128 kB/s for nothing; who waits ten seconds takes text for lost."""

MAX_JOINED_REQUEST_BYTES = 2**17
"""Of a message that comes in parts: a Propose of `MAX_NODES` nodes that each bring the largest distribution
has some 110 kB where ids have three bytes."""

MAX_JOINED_RESPONSE_BYTES = 2**20
"""A Commit of `MAX_COMMIT_TOKENS` tokens with twenty alternatives each has some 600 kB."""

MAX_ACCEPTANCE_RULES = 64
"""There are eight, and later versions may have more."""

MAX_EOS_TOKENS = 128
"""As `common.sampling.MAX_STOP_TOKENS`; models have one to five."""


def in_range(field: str, value: int, low: int, high: int) -> int:
    """`value`. Raises `PeerError` when it lies outside [low, high]."""
    if not low <= value <= high:
        raise PeerError(f"{field} is {value}; it must lie in [{low}, {high}]")
    return value


def count(field: str, number: int, low: int, high: int, unit: str = "entries") -> int:
    """`number`, the length of a field. Raises `PeerError` when it lies outside [low, high]."""
    if not low <= number <= high:
        allowed = str(low) if low == high else f"{low} to {high}"
        raise PeerError(f"{field} has {number} {unit}; there must be {allowed}")
    return number


def tokens(field: str, values: Sequence[int], low: int, high: int) -> tuple[int, ...]:
    """The token ids of a repeated field, low to high of them. Raises `PeerError`.

    The length is looked at before anything is copied. `values` are unsigned: protobuf's type says so.
    """
    if not low <= len(values) <= high:
        count(field, len(values), low, high)
    ids = tuple(values)
    if ids and max(ids) > MAX_TOKEN_ID:
        in_range(f"{field} token id", max(ids), 0, MAX_TOKEN_ID)
    return ids


def text(field: str, value: str, high: int) -> str:
    """A string of at most `high` characters, all printable: it goes to logs. Raises `PeerError`."""
    count(field, len(value), 0, high, "characters")
    if not value.isprintable():
        raise PeerError(f"{field} is {value!r}; only printable characters are allowed")
    return value


def page(field: str, value: str, high: int) -> str:
    """A string of at most `high` bytes of UTF-8, of any characters: it goes to no log. Raises `PeerError`."""
    count(field, len(value.encode()), 0, high, "bytes")
    return value


def blob(field: str, value: bytes, high: int) -> bytes:
    """At most `high` bytes. Raises `PeerError`."""
    count(field, len(value), 0, high, "bytes")
    return value
