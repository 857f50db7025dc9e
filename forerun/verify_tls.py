"""Options of `forerun verify` for encrypted connections."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError

if TYPE_CHECKING:
    from cloud_verifier.tls import ServerTls


def add_tls(parser: argparse.ArgumentParser) -> None:
    """PEM files; none by default, as a verifier listens on loopback by default."""
    option = parser.add_argument_group("TLS").add_argument
    option("--tls-cert", type=Path, metavar="FILE", help="certificate chain in PEM; edges then need its CA")
    option("--tls-key", type=Path, metavar="FILE", help="its private key in PEM")
    option(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="serve only edges whose certificate this CA has signed",
    )


def check_tls(options: argparse.Namespace) -> None:
    """Raises `UserError` for files that do not go together or cannot be used, before seconds are spent."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UserError("--tls-cert needs --tls-key, and --tls-key needs --tls-cert; give both")
    if options.tls_client_ca is not None and options.tls_cert is None:
        raise UserError("--tls-client-ca needs --tls-cert and --tls-key: without TLS no edge shows who it is")
    if (tls := server_tls(options)) is not None:
        tls.read()


def server_tls(options: argparse.Namespace) -> ServerTls | None:
    """What the options ask for; None for plain text."""
    from cloud_verifier.tls import ServerTls

    if options.tls_cert is None:
        return None
    return ServerTls(options.tls_cert, options.tls_key, options.tls_client_ca)
