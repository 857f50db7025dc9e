"""gRPC's options for both sides. They belong together: a client that pings more often than the server allows
is thrown out (GOAWAY "too_many_pings")."""

from __future__ import annotations

Options = tuple[tuple[str, int], ...]

KEEPALIVE_TIME_MS = 20_000
"""A ping after this much silence. NATs and mobile carriers forget an idle flow after 30 s and more."""

KEEPALIVE_TIMEOUT_MS = 10_000
"""A peer that leaves a ping unanswered for this long is gone: several times the worst mobile RTT."""

MIN_PING_INTERVAL_MS = KEEPALIVE_TIME_MS // 2
"""What the server puts up with: half the client's interval, because timers on both sides drift."""

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""A million prompt and a million committed tokens at four bytes each; gRPC's own default is 4 MiB."""

FIRST_RECONNECT_MS = 100
"""gRPC waits 1 s at first; a user who watches text appear notices that."""

MAX_RECONNECT_MS = 5_000
"""gRPC goes up to 120 s; a device that comes out of a tunnel should not sit that out."""

_BOTH: Options = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # A session without a call yet, or between two streams, finds a dead connection before it needs it.
    ("grpc.keepalive_permit_without_calls", 1),
    # gRPC stops after two pings without data by default; a long prefill or a wait for capacity sends none.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


def channel_options() -> Options:
    """For `grpc.aio.secure_channel` and `insecure_channel`."""
    return (
        *_BOTH,
        ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
        # grpc.min_reconnect_backoff_ms stays at its default of 20 s: whatever its name says, it is how long
        # one attempt to connect may take, TLS included.
        # A verifier is named on purpose. A web proxy from the environment cannot carry it.
        ("grpc.enable_http_proxy", 0),
        # gRPC's retries cannot resume a stream; the edge reconnects with its committed tokens (rule 12).
        ("grpc.enable_retries", 0),
    )


def server_options(*, reuse_port: bool = False) -> Options:
    """For `grpc.aio.server`. `reuse_port` lets several processes of one machine share the port.

    It is off unless asked for (gRPC's default is on): a second verifier started by mistake on the same port
    would silently take half of the connections.
    """
    return (
        *_BOTH,
        # gRPC's default of 5 minutes would answer our own client's pings with GOAWAY.
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.so_reuseport", int(reuse_port)),
    )
