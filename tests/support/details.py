"""Reads what a status carries for programs."""

import grpc.aio

from common.pb import verifier_pb2 as pb
from common.wire.status import DETAIL_KEY


def to_detail(error: grpc.aio.AioRpcError) -> pb.ErrorDetail:
    """Return the detail of a status; empty without one. Raises `DecodeError` for bytes that are none."""
    data = next((value for key, value in error.trailing_metadata() if key == DETAIL_KEY), b"")
    assert isinstance(data, bytes)
    return pb.ErrorDetail.FromString(data)
