"""Names the calls of a verifier (proto/forerun/v1/verifier.proto), for clients and servers of `grpc.aio`."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from common.pb import verifier_pb2 as pb

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VerifierService"].full_name
SESSION, DESCRIBE = f"/{SERVICE_NAME}/Session", f"/{SERVICE_NAME}/Describe"


class VerifierStub:
    """Calls a verifier: `Session` opens a stream, `Describe` asks what it serves."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.Session = channel.stream_stream(
            SESSION, pb.SessionRequest.SerializeToString, pb.SessionResponse.FromString
        )
        self.Describe = channel.unary_unary(
            DESCRIBE, pb.DescribeRequest.SerializeToString, pb.DescribeResponse.FromString
        )


def add_service(service: Any, server: Any) -> None:
    """Let a server answer with the methods `Session` and `Describe` of `service`."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Session": grpc.stream_stream_rpc_method_handler(
            service.Session, pb.SessionRequest.FromString, pb.SessionResponse.SerializeToString
        ),
        "Describe": grpc.unary_unary_rpc_method_handler(
            service.Describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
