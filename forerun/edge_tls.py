"""Options of the edge commands for encrypted connections to a verifier."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UserError

if TYPE_CHECKING:
    from edge_client.tls import TlsSettings


def add_edge_tls(parser: argparse.ArgumentParser) -> None:
    """What to trust, who one is, and whether plain text may leave the machine."""
    option = parser.add_argument_group("TLS").add_argument
    option(
        "--tls",
        action="store_true",
        help="speak TLS, and trust whom this system trusts unless --tls-ca is given",
    )
    option("--tls-ca", type=Path, metavar="FILE", help="CA in PEM that signed the verifier's certificate")
    option("--tls-cert", type=Path, metavar="FILE", help="this edge's certificate in PEM, if it is asked for")
    option("--tls-key", type=Path, metavar="FILE", help="its private key in PEM")
    option(
        "--tls-name",
        default="",
        metavar="NAME",
        help="that the verifier's certificate bears, if not the host",
    )
    option(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="token for a verifier that asks for one, read anew when it changes; only sent over TLS",
    )
    option(
        "--insecure",
        action="store_true",
        help="allow plain text to another machine; anybody on the way reads it",
    )


def edge_tls(options: argparse.Namespace) -> TlsSettings | None:
    """What the options ask for; None for plain text. Raises `UserError`."""
    from edge_client.tls import TlsSettings

    files = (options.tls_ca, options.tls_cert, options.tls_key, options.tls_name or None, options.token_file)
    if not options.tls and files == (None,) * len(files):
        return None
    if options.insecure:
        raise UserError("--insecure allows plain text, and TLS is asked for; give one of them")
    return TlsSettings(
        options.tls_ca, options.tls_cert, options.tls_key, options.tls_name, options.token_file
    )
