"""What single settings must look like, beyond bounds and choices: each check returns what is wrong."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from common.address import host_and_port
from common.errors import UserError

UNIX = "unix:"
LONGEST_SOCKET_PATH = 100  # bytes; the kernels' limit is 104 on macOS and 108 on Linux, its end included
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
TOPIC_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")


def addresses(values: tuple[str, ...]) -> str:
    """Of verifiers: at least one, each HOST:PORT, none twice."""
    if not values:
        return "it must name at least one HOST:PORT"
    wrong = [each for each in values if host_and_port(each) is None]
    if wrong:
        return f"{wrong[0]!r} is not of the form HOST:PORT, for example 127.0.0.1:50051"
    return "" if len(set(values)) == len(values) else "it must name each address once"


def listen(value: str) -> str:
    """Where the API is."""
    if is_unix(value):
        path = value.removeprefix(UNIX)
        if not path.startswith("/"):
            return "the path of a unix socket must be absolute, for example unix:/run/forerun/edge.sock"
        too_long = len(path.encode()) > LONGEST_SOCKET_PATH
        return f"the path of a unix socket has at most {LONGEST_SOCKET_PATH} bytes" if too_long else ""
    if host_and_port(value) is None:
        return "it must be HOST:PORT, for example 127.0.0.1:8080, or unix:PATH"
    return ""


def hosts(values: tuple[str, ...]) -> str:
    """Names as a Host header has them, without a port."""
    wrong = [each for each in values if not HOST.fullmatch(each)]
    if wrong:
        return f"{wrong[0]!r} is no host name; leave out scheme, port and wildcards"
    return ""


def origins(values: tuple[str, ...]) -> str:
    """As a browser writes them: scheme, host and port, nothing after."""
    for each in values:
        parts = urlsplit(each)
        if (
            parts.scheme not in ("http", "https")
            or not parts.netloc
            or each != f"{parts.scheme}://{parts.netloc}"
        ):
            return f"{each!r} is no web origin; write for example https://chat.example.com, without a path"
    return ""


def sha256(value: str) -> str:
    """Empty, or a hash."""
    return (
        "" if not value or SHA256.fullmatch(value) else "it must be 64 hex digits, as sha256sum prints them"
    )


def policy(value: str) -> str:
    """A growth policy that there is."""
    from edge_client.core.policies import make_policy

    try:
        make_policy(value)
    except UserError as error:
        return str(error)
    return ""


def broker(value: str) -> str:
    """Empty, or a URL without a password in it."""
    if not value:
        return ""
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return "its port must be a number up to 65535"
    if parts.username is not None or parts.password is not None:
        return (
            "a name and a password do not stand in the address; give fleet.username and fleet.password_file"
        )
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/") or port == 0:
        return "it must be mqtts://HOST:PORT, or mqtt://HOST:PORT without TLS"
    return ""


def topic_level(value: str) -> str:
    """Empty, or a word that is one level of an MQTT topic and no wildcard."""
    if not value or TOPIC_LEVEL.fullmatch(value):
        return ""
    return "it must be letters, digits, '.', '_' and '-', 128 at most, and begin with a letter or a digit"


def is_unix(address: str) -> bool:
    """Whether it is a socket in the file system."""
    return address.startswith(UNIX)


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is this machine and no other; a name other than localhost is not asked for."""
    found = host_and_port(address)
    host = found[0].strip("[]") if found else ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
