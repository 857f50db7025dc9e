"""Implements `forerun pair`, and `forerun serve --pair`: a safe link between two machines by one line.

The verifier makes a certificate and a secret once. The line that it prints holds its address, the SHA-256 of
the certificate, and the secret. The device fetches the certificate, compares it with the line, and keeps
both. So nobody between them can pose as the verifier, and nobody without the line can use it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import os
import re
import secrets
import socket
import ssl
import sys
from dataclasses import dataclass
from getpass import getpass
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.live_files import read_bytes
from common.config.setting import REQUIRED, setting
from common.errors import UnavailableError, UserError
from common.wire.grpc_options import host_and_port
from edge_client.network.addresses import VerifierAddress, parse_address
from edge_client.process.paths import PAIRED, EdgePaths, find_paths, make_private, write_private
from edge_client.settings import load_config
from forerun.terminal import note

DESCRIPTION = """\
Connect this device to a verifier on another machine. `forerun serve MODEL --pair` prints the line to run:

  forerun pair HOST:PORT KEY
  forerun edge --pair --draft FILE.gguf     # asks for that line, then runs

The link is TLS. The device keeps the verifier's certificate and its secret, and `forerun edge` uses them."""

NAME = "forerun.pair"
"""The name in every such certificate. Its SHA-256 says whose it is, so the address may change."""

LIFETIME = datetime.timedelta(days=3650)
KEY = re.compile(r"[A-Za-z0-9_-]{43}\.[A-Za-z0-9_-]{43}")
TIMEOUT = 10.0  # seconds for the verifier to show its certificate


@dataclass(frozen=True, slots=True)
class Pairing:
    """Names a verifier's files in a folder."""

    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def secret(self) -> Path:
        return self.folder / "secret"

    @classmethod
    def of(cls, paths: EdgePaths) -> Pairing:
        """Return the pairing of a verifier that this user runs."""
        return cls(paths.state / "pair")

    def make(self) -> None:
        """Make the files that are not there yet. Raises `UserError`."""
        if self.secret.exists():
            return
        from forerun.commands.dev_certs import Authority, write_new

        pair = Authority(LIFETIME).server([NAME])
        make_private(self.folder)
        for each in (self.cert, self.key):  # of a start that was interrupted: nobody has its line
            each.unlink(missing_ok=True)
        files = {self.cert: (pair.cert, False), self.key: (pair.key, True)}
        write_new(files | {self.secret: (secrets.token_urlsafe(32).encode() + b"\n", True)})

    def words(self, listening: str) -> str:
        """Return the address and the key that a device needs. Raises `UserError`."""
        own, port = host_and_port(listening) or ("", 0)
        own = own.strip("[]")
        own = _own_address() if own in ("0.0.0.0", "::") else own  # noqa: S104 - what the user asked for
        own = f"[{own}]" if ":" in own else own
        certificate, secret = (read_bytes(path, "the pairing").decode() for path in (self.cert, self.secret))
        return f"{own}:{port} {_mark(ssl.PEM_cert_to_DER_cert(certificate))}.{secret.strip()}"


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Declares what the verifier printed."""

    address: str = setting(REQUIRED, "address of the verifier, HOST:PORT", is_argument=True)
    key: str = setting(REQUIRED, "key that it printed", is_argument=True)


def add_parser(commands: Any) -> None:
    words = "connect this device to a verifier on another machine"
    add_command(commands, "pair", words, _pair, PairOptions, DESCRIPTION)


def _pair(options: PairOptions) -> int:
    connect(options)
    print("Now: forerun edge --draft FILE.gguf")
    return 0


def asked() -> PairOptions:
    """Read the line that the verifier printed, typed unseen or from standard input. Raises `UserError`."""
    line, is_typed = "", sys.stdin.isatty()
    with contextlib.suppress(EOFError):
        question = "The line that `forerun serve --pair` printed: "
        line = getpass(question) if is_typed else sys.stdin.readline(1024)
    match line.split():
        case [*_, "pair", address, key] | [address, key]:
            return PairOptions(address=address, key=key)
    raise UserError("the line is not whole; copy all of it: forerun pair HOST:PORT KEY")


def connect(options: PairOptions) -> None:
    """Keep what a pairing needs, and say so. Raises `UserError` and `UnavailableError`."""
    address = parse_address(options.address, encrypted=True)
    if not KEY.fullmatch(options.key):
        raise UserError("the key is not whole; copy all of the line: forerun pair HOST:PORT KEY")
    mark, _, secret = options.key.partition(".")
    paths = find_paths(os.environ)
    before = load_config({}, os.environ, paths.files_read(None)).config.verifier
    if before.insecure:
        raise UserError("verifier.insecure is true, and a pairing needs TLS; remove that setting first")
    certificate = _certificate_of(address)
    if not hmac.compare_digest(_mark(certificate), mark):
        raise UserError(
            f"{address} shows another certificate than the line says, and nothing is kept: another "
            "server answers there, or the verifier has made a new one; take the line that it prints now"
        )
    folder = make_private(paths.config)
    pem = ssl.DER_cert_to_PEM_cert(certificate)
    files = {"pair.crt": pem, "pair.secret": f"{secret}\n", PAIRED: _settings(str(address))}
    try:
        for name, content in files.items():
            write_private(folder / name, content.encode())
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    now = load_config({}, os.environ, paths.files_read(None)).config.verifier
    own = {"addresses": (str(address),), "tls_ca": f"{folder / 'pair.crt'}", "tls_server_name": NAME}
    own["token_file"] = f"{folder / 'pair.secret'}"
    if others := [name for name, value in own.items() if getattr(now, name) != value]:
        note(f"edge.toml or the environment sets verifier.{', verifier.'.join(others)} otherwise")
    note(f"paired with {address}")


def _settings(address: str) -> str:
    return (
        "# Written by `forerun pair`. edge.toml overrides it.\n[verifier]\n"
        f'addresses = ["{address}"]\ntls_ca = "pair.crt"\ntls_server_name = "{NAME}"\n'
        'token_file = "pair.secret"\n'
    )


def _certificate_of(address: VerifierAddress) -> bytes:
    """Return the certificate that a server shows, DER, unchecked. Raises `UnavailableError`."""
    try:
        pem = ssl.get_server_certificate((address.bare_host, address.port), timeout=TIMEOUT)
    except OSError as error:
        raise UnavailableError(
            f"{address} shows no certificate ({error}); start `forerun serve MODEL --pair` there, and let "
            "its firewall pass the port"
        ) from error
    return ssl.PEM_cert_to_DER_cert(pem)


def _mark(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate, 43 characters."""
    return base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()).rstrip(b"=").decode()


def _own_address() -> str:
    """Return the address by which this machine reaches others. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no machine (RFC 5737)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()
