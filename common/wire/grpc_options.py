"""Define gRPC's options for both sides, and the metadata entry. The options must match: the server closes the
connection of a client that pings too often (GOAWAY "too_many_pings")."""

from __future__ import annotations

import importlib.metadata
from ipaddress import ip_address

Options = tuple[tuple[str, int], ...]

KEY_ENTRY = "x-session-id"
"""Metadata entry that a balancer hashes, by the name that others use for it (Ray Serve, Envoy's examples)."""

KEEPALIVE_TIME_MS = 2_000
"""Silence on a connection with a call after which the edge pings. With the answer's timeout a frozen peer is
detected within 5 s. A connection without a call is never pinged, so that an idle laptop's radio can sleep; an
edge that needs a verifier checks it first (`edge_client.network.verifiers`)."""

KEEPALIVE_TIMEOUT_MS = 2_000
"""Time after which a verifier that has not answered a ping counts as gone. Pings are answered below Python
and the engine, so a busy verifier answers too. A stream that was ended wrongly is only resumed."""

HANDSHAKE_TIMEOUT_MS = 10_000
"""Time for a connection's TLS and first HTTP/2 frames. gRPC's default is two minutes, in which silent clients
could hold any number of files."""

MAX_IDLE_MS = 600_000
"""Time after which a connection without a call is closed. An active edge calls every five minutes at
least."""

MAX_CONNECTIONS = 4096
"""Connections at once. An idle one costs some 30 KB and a file for `MAX_IDLE_MS`; a device has one. Above the
limit new connections are closed at once, and their edges go elsewhere or retry."""

MAX_STREAMS = 256
"""Calls at once on one connection: more than any edge has."""

SERVER_KEEPALIVE_TIME_MS, SERVER_KEEPALIVE_TIMEOUT_MS = 20_000, 10_000
"""Keepalive of the server. It is slower than the edge's, as a lost edge leaves only slots behind."""

MIN_PING_INTERVAL_MS = KEEPALIVE_TIME_MS // 2
"""Least ping interval that the server allows: half the client's, because timers on both sides drift."""

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
"""Time for one attempt to connect, TLS included: five round trips of a bad mobile link. A wrong address then
shows within 2 s, in place of gRPC's 20 s."""

FIRST_RECONNECT_MS = 100
"""First wait before a reconnect. gRPC's default of 1 s is visible to a user who watches text appear."""

MAX_RECONNECT_MS = 5_000
"""Longest wait before a reconnect. gRPC's default of 120 s is too long after a short loss of network."""

_BOTH: Options = (
    ("grpc.keepalive_permit_without_calls", 0),
    # gRPC stops after two pings without data by default; a long prefill or a wait for capacity sends none.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.compression_enabled_algorithms_bitset", NO_COMPRESSION),
)


def session_bytes(max_positions: int) -> int:
    """Return the most bytes of one `Session` message for a target of `max_positions`: the power of two, as
    edges pad an `Open`, that holds the longest prompt and text. Never above `MAX_MESSAGE_BYTES`."""
    needed = TOKEN_BYTES * max_positions + OPEN_BYTES
    return min(1 << (needed - 1).bit_length(), MAX_MESSAGE_BYTES)


def channel_options() -> Options:
    """Return options for `grpc.aio.secure_channel` and `insecure_channel`."""
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


def server_options(*, message_bytes: int = SMALL_MESSAGE_BYTES) -> Options:
    """Return options for `grpc.aio.server`. gRPC refuses a message of more than `message_bytes` before it is
    received."""
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
        # Else a second verifier started by mistake on the same port would take half of the connections.
        ("grpc.so_reuseport", 0),
    )


def _keepalive(time_ms: int, timeout_ms: int) -> Options:
    """A ping that stays without an answer is dropped after `ping_timeout_ms`, a minute by default, and only
    then does keepalive's own timeout end the connection: without the third option the second means little."""
    return (
        ("grpc.keepalive_time_ms", time_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),
    )


# The release of Forerun, for the other side and for operators.


def version() -> str:
    """Return the program's version; empty if it runs from sources without installation. Reading the package's
    metadata takes milliseconds."""
    try:
        return importlib.metadata.version("forerun")
    except importlib.metadata.PackageNotFoundError:
        return ""


# Addresses of servers as text.


def host_and_port(address: str) -> tuple[str, int] | None:
    """Split HOST:PORT, an IPv6 host in its brackets; None if it reads otherwise."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 2**16):
        return None
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches what listens on `host`. A name may stand for any address."""
    try:
        return host == "localhost" or ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
