"""Measures what each message costs on the wire.

    python -m lab.benchmarks.wire_size [--json]

Worst cases of a steady state, nothing random: every token id is the largest of a 128k vocabulary, every
count and time has the width that it has in use. `bytes` is the serialised SessionRequest or SessionResponse,
protobuf's overhead included; `framed` adds gRPC's and HTTP/2's, which a message sent alone pays (TLS, TCP and
IP come on top, and are shared by whatever leaves in one packet).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from common.acceptance import TOTAL, Draft
from common.messages import (
    ClientMessage,
    Close,
    Commit,
    Finish,
    FinishReason,
    Open,
    Opened,
    Propose,
    ServerMessage,
)
from common.sampling import SamplingParams
from common.wire.codec import encode_request, encode_response
from lab.bench.report import finish
from lab.benchmarks.reports import parser_of

TOKEN = 128_255
"""The largest id of Llama 3's vocabulary: three bytes as a varint, as every id from 16,384 on."""

POSITION = 20_000
"""Of a long conversation: three bytes, as every position from 16,384 to 2,097,151."""

GRPC_PREFIX = 5
"""Compression flag and length (gRPC over HTTP/2, Length-Prefixed-Message)."""

DATA_HEADER = 9
"""Of an HTTP/2 frame (RFC 9113, 4.1)."""

CHAIN_LENGTHS = (1, 2, 4, 8, 16)
DRAFT_SIZES = (8, 32, 64)


@dataclass(frozen=True, slots=True)
class Row:
    """Holds one measured message. `tokens` are its drafted, committed or prompt tokens."""

    message: str
    tokens: int
    bytes: int
    framed: int

    @property
    def per_token(self) -> float | None:
        """Return serialised bytes per token; None without tokens."""
        return self.bytes / self.tokens if self.tokens else None


def chain(num_nodes: int) -> Propose:
    """Return a Propose of the steady state: a chain below the node before it, after a Commit was seen."""
    return Propose((TOKEN,) * num_nodes, bytes([255]) * num_nodes, seen_advance=5)


def tree(num_nodes: int) -> Propose:
    """Return a Propose of branches, the first of which hangs at a committed token."""
    deltas = (0, *range(1, num_nodes))
    return Propose((TOKEN,) * num_nodes, bytes([255]) * num_nodes, deltas, POSITION, 5)


def drawn(num_nodes: int, num_tokens: int) -> Propose:
    """Return a steady-state chain whose nodes were each drawn from a distribution of so many tokens, spread
    over the vocabulary."""
    step = TOKEN // num_tokens
    counts = (TOTAL - num_tokens + 1, *(1,) * (num_tokens - 1))
    draft = Draft(tuple(range(step, TOKEN + 1, step))[:num_tokens], counts)
    tokens = (draft.tokens[-1],) * num_nodes
    return Propose(tokens, bytes([255]) * num_nodes, seen_advance=5, drafts=(draft,) * num_nodes)


def commit(num_tokens: int, *, plain: bool = False) -> Commit:
    """Return a Commit of one step: the last token is the verifier's. `plain` has no news of any Propose."""
    mask = 1 << (num_tokens - 1)
    tokens = (TOKEN,) * num_tokens
    if plain:
        return Commit(POSITION, tokens, mask, queue_us=900, compute_us=31_000, evaluated=1)
    return Commit(
        POSITION, tokens, mask, echo=500, hold_us=20_000, queue_us=900, compute_us=31_000, evaluated=9
    )


def measure() -> list[Row]:
    """Return all rows of the table in its order."""
    prompt = (TOKEN,) * 1000
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=2**63)
    opening = Open(prompt, sampling, bytes(32), session_id="0123456789abcdef")
    return [
        *(_request(f"Propose, chain of {length}", length, chain(length)) for length in CHAIN_LENGTHS),
        *(_request(f"Propose, anchored tree of {size}", size, tree(size)) for size in (4, 8, 16)),
        *(_request(f"Propose, chain of 8 drawn from {size}", 8, drawn(8, size)) for size in DRAFT_SIZES),
        _request("Propose, empty", 0, Propose()),
        _request("Open, prompt of 1000", 1000, opening),
        _request("Close", 0, Close()),
        _response("Commit of 1, no news", 1, commit(1, plain=True)),
        *(_response(f"Commit of {length}", length, commit(length)) for length in (1, 3, 6)),
        _response("Opened", 0, Opened(POSITION, 64, 20_000, cached=POSITION)),
        _response("Finish", 0, Finish(FinishReason.STOP, POSITION)),
    ]


def _request(name: str, tokens: int, message: ClientMessage) -> Row:
    return _row(name, tokens, encode_request(message).SerializeToString())


def _response(name: str, tokens: int, message: ServerMessage) -> Row:
    return _row(name, tokens, encode_response(message).SerializeToString())


def _row(name: str, tokens: int, wire: bytes) -> Row:
    return Row(name, tokens, len(wire), len(wire) + GRPC_PREFIX + DATA_HEADER)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or with --json a list of objects."""
    rows = measure()
    lines = ["| message | bytes | per token | with gRPC and HTTP/2 framing |", "|---|---|---|---|"]
    for row in rows:
        per_token = "" if row.per_token is None else f"{row.per_token:.2f}"
        lines.append(f"| {row.message} | {row.bytes} | {per_token} | {row.framed} |")
    report = [{**asdict(row), "per_token": row.per_token} for row in rows]
    finish(parser_of("wire_size", __doc__).parse_args(arguments), report, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
