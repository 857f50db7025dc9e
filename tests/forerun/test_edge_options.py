"""What `forerun edge` and `verify` may be told of TLS and privacy."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.network.client_tls import TlsSettings
from edge_client.settings import load_config
from forerun.cli import build_parser
from forerun.commands.edge import PipeOptions
from forerun.options import read_fields
from tests.cloud_verifier.configured import configured

pytestmark = pytest.mark.grpc

VERIFY = ["verify", "--model", "x"]
PIPE = ["edge", "pipe", "--verifier", "127.0.0.1:1", "--draft", "x"]


def pipe(*words: str) -> PipeOptions:
    return read_fields(build_parser("edge").parse_args([*PIPE, *words]), PipeOptions)


def test_an_edge_speaks_tls_when_any_of_it_is_named() -> None:
    for words, wanted in (
        ("", None),
        ("--insecure", None),
        ("--tls", TlsSettings()),
        ("--tls-ca a --tls-name gpu", TlsSettings(Path("a"), server_name="gpu")),
        ("--token-file t", TlsSettings(token_file=Path("t"))),  # never without TLS
        ("--tls-cert c --tls-key k", TlsSettings(cert=Path("c"), key=Path("k"))),
    ):
        assert pipe(*words.split()).channel_tls == wanted, words


def test_messages_are_padded_unless_somebody_says_otherwise() -> None:
    assert configured().server.privacy == "padded"
    assert pipe().privacy == "padded"
    assert load_config({}, {}, []).config.verifier.privacy == "padded"


@pytest.mark.parametrize("level", ["tight", "strict"])
@pytest.mark.parametrize("words", [VERIFY, PIPE])
def test_a_level_that_is_none_is_refused_wherever_it_stands(words: list[str], level: str) -> None:
    with pytest.raises(SystemExit):
        build_parser(words[0]).parse_args([*words, "--privacy", level])
    with pytest.raises(UserError, match=r"verifier.privacy .*off or padded"):
        load_config({}, {"FORERUN_EDGE_VERIFIER_PRIVACY": level}, [])


def test_a_fleet_cannot_lift_it() -> None:
    with pytest.raises(UserError, match=r"verifier\.privacy"):
        load_config({}, {}, [], {"verifier.privacy": "off"})
