"""gRPC's options for both sides, and the one entry of metadata. The options belong together: a client that
pings more often than the server allows is thrown out (GOAWAY "too_many_pings")."""

from __future__ import annotations

Options = tuple[tuple[str, int], ...]

KEY_ENTRY = "x-session-id"
"""Metadata entry that a balancer hashes, by the name that others use for it (Ray Serve, Envoy's examples)."""

KEEPALIVE_TIME_MS = 2_000
"""An edge pings after this much silence of a connection that has a call. With the time for the answer a peer
that froze is found within 5 s, whatever runs on the connection. One without a call is never pinged: an idle
laptop's radio sleeps, and who needs a verifier asks it (`edge_client.verifiers`)."""

KEEPALIVE_TIMEOUT_MS = 2_000
"""A verifier that leaves a ping unanswered for this long is gone. Pings are answered below Python and below
the engine, so a busy verifier answers them, too; and a stream that was given up wrongly is only resumed."""

HANDSHAKE_TIMEOUT_MS = 10_000
"""For a connection to become one: TLS, and the first frames of HTTP/2. gRPC's default is two minutes, in
which who opens connections and says nothing holds as many files as he likes."""

MAX_IDLE_MS = 600_000
"""After which a connection without a call is closed. An edge that is awake asks every five minutes at
least."""

MAX_CONNECTIONS = 4096
"""At once. One without a call costs some 30 KB and a file, and lives for `MAX_IDLE_MS`; a device has one.
Beyond them a new one is closed as it comes, and its edge goes elsewhere or comes again."""

MAX_STREAMS = 256
"""Calls at once of one connection: more than any edge has, and a bound where there was none."""

SERVER_KEEPALIVE_TIME_MS, SERVER_KEEPALIVE_TIMEOUT_MS = 20_000, 10_000
"""A verifier is in no such hurry: an edge that went leaves slots behind, no waiting person."""

MIN_PING_INTERVAL_MS = KEEPALIVE_TIME_MS // 2
"""What the server puts up with: half the client's interval, because timers on both sides drift."""

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""A million prompt and a million committed tokens at four bytes each; gRPC's own default is 4 MiB."""

SMALL_MESSAGE_BYTES = 64 * 1024
"""Limit for a request of every method but `Session`. The largest of them names a model or a service."""

OPEN_BYTES = 128 * 1024
"""Bytes of an `Open` without its tokens, at most: a grammar of 64 KiB, 1,024 biases, 128 stop tokens."""

TOKEN_BYTES = 5
"""The longest varint of a uint32."""

NO_COMPRESSION = 1
"""The bit set of compression algorithms that holds `identity` alone. gzip turns 8 KB into 8 MiB."""

CONNECT_TIMEOUT_MS = 1_500
"""For one attempt to connect, TLS included: five round trips of a bad mobile link. Who named a wrong address
should know within 2 s, where gRPC's default is 20."""

FIRST_RECONNECT_MS = 100
"""gRPC waits 1 s at first; a user who watches text appear notices that."""

MAX_RECONNECT_MS = 5_000
"""gRPC goes up to 120 s; a device that comes out of a tunnel should not sit that out."""

_BOTH: Options = (
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC stops after two pings without data by default; a long prefill or a wait for capacity sends none.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.compression_enabled_algorithms_bitset", NO_COMPRESSION),
)


def session_bytes(max_positions: int) -> int:
    """Bytes that one message of `Session` may have, for a target of so many positions: the power of two, to
    which edges pad an `Open`, that holds the longest prompt and text. Never above `MAX_MESSAGE_BYTES`."""
    needed = TOKEN_BYTES * max_positions + OPEN_BYTES
    return min(1 << (needed - 1).bit_length(), MAX_MESSAGE_BYTES)


def channel_options() -> Options:
    """For `grpc.aio.secure_channel` and `insecure_channel`."""
    return (
        *_BOTH,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        *_keepalive(KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS),
        # Whatever its name says, it is how long one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.initial_reconnect_backoff_ms", FIRST_RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_MS),
        # A verifier is named on purpose. A web proxy from the environment cannot carry it.
        ("grpc.enable_http_proxy", 0),
        # gRPC's retries cannot resume a stream; the edge reconnects with its committed tokens (rule 12).
        ("grpc.enable_retries", 0),
    )


def server_options(*, reuse_port: bool = False, message_bytes: int = SMALL_MESSAGE_BYTES) -> Options:
    """For `grpc.aio.server`. gRPC refuses a message of more than `message_bytes` before it is received.
    `reuse_port` lets several processes of one machine share the port.

    It is off unless asked for (gRPC's default is on): a second verifier started by mistake on the same port
    would silently take half of the connections.
    """
    return (
        *_BOTH,
        ("grpc.max_receive_message_length", message_bytes),
        *_keepalive(SERVER_KEEPALIVE_TIME_MS, SERVER_KEEPALIVE_TIMEOUT_MS),
        # gRPC's default of 5 minutes would answer our own client's pings with GOAWAY.
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", MAX_IDLE_MS),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.so_reuseport", int(reuse_port)),
    )


def _keepalive(time_ms: int, timeout_ms: int) -> Options:
    """A ping that stays without an answer is dropped after `ping_timeout_ms`, a minute by default, and only
    then does keepalive's own timeout end the connection: without the third option the second means little."""
    return (
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
    )
