"""The codec's public face: messages of `common.messages` to protobuf and back.

    driver ── encode_request ──▶ SessionRequest ──▶ decode_request ── verifier
    driver ◀─ decode_response ── SessionResponse ◀── encode_response ─ verifier

Encoding trusts our own side; decoding trusts nothing (`common.rpc.bounds`, rule 15 of docs/protocol.md).
"""

from __future__ import annotations

from common.rpc.decode import decode_request, decode_response, decode_sampling
from common.rpc.encode import encode_request, encode_response, encode_sampling

__all__ = [
    "decode_request",
    "decode_response",
    "decode_sampling",
    "encode_request",
    "encode_response",
    "encode_sampling",
]
