"""Errors in the richer model that other clients than ours read: `google.rpc.Status` in the trailing metadata.

The model is https://google.aip.dev/193; `common.rpc.status` has our own detail beside it.
"""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status as RichStatus

from common.rpc.status import Status

DETAILS_KEY = "grpc-status-details-bin"


def with_retry_info(status: Status, retry_after: float) -> Status:
    """`status` with a `RetryInfo` beside it: not worth trying before `retry_after` seconds have passed."""
    number = status.code.value[0]
    rich = RichStatus(code=number, message=status.details)
    delay = Duration()
    delay.FromNanoseconds(round(retry_after * 1e9))
    rich.details.add().Pack(RetryInfo(retry_delay=delay))
    return status._replace(
        trailing_metadata=(*status.trailing_metadata, (DETAILS_KEY, rich.SerializeToString()))
    )
