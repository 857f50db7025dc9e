"""What `forerun verify` and `relay` may be told of TLS and privacy."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config.command_line import read_options
from common.errors import UserError
from edge_client.network.client_tls import TlsSettings
from edge_client.settings import load_config
from forerun.cli import build_parser
from schemes.relay.command import RelayOptions
from tests.cloud_verifier.configured import configured

pytestmark = pytest.mark.grpc

VERIFY = ["verify", "--model", "x"]
RELAY = ["relay", "--verifier", "127.0.0.1:1", "--model", "x"]


@pytest.mark.parametrize(
    ("words", "tls"),
    [
        ("", None),
        ("--insecure", None),
        ("--tls", TlsSettings()),
        ("--tls-ca a --tls-name gpu", TlsSettings(Path("a"), server_name="gpu")),
        ("--token-file t", TlsSettings(token_file=Path("t"))),  # never without TLS
        ("--tls-cert c --tls-key k", TlsSettings(cert=Path("c"), key=Path("k"))),
    ],
)
def test_a_relay_speaks_tls_when_any_of_it_is_named(words: str, tls: TlsSettings | None) -> None:
    options = build_parser("relay").parse_args([*RELAY, *words.split()])
    assert read_options(options, RelayOptions).channel_tls == tls


def test_messages_are_padded_unless_somebody_says_otherwise() -> None:
    assert configured().server.privacy == "padded"
    assert load_config({}, {}, []).config.verifier.privacy == "padded"


@pytest.mark.parametrize("level", ["tight", "strict"])
@pytest.mark.parametrize("words", [VERIFY, RELAY])
def test_a_level_that_is_none_is_refused_wherever_it_stands(words: list[str], level: str) -> None:
    with pytest.raises(SystemExit):
        build_parser(words[0]).parse_args([*words, "--privacy", level])
    with pytest.raises(UserError, match=r"verifier.privacy .*off or padded"):
        load_config({}, {"FORERUN_EDGE_VERIFIER_PRIVACY": level}, [])
