"""Laws of the TLS options: what does not go together is refused with a sentence, before anything is
loaded."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from common.errors import UserError
from forerun.edge_tls import add_edge_tls, edge_tls
from forerun.verify_tls import add_tls, check_tls, server_tls

pytestmark = pytest.mark.grpc


def verify(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_tls(parser)
    return parser.parse_args(words)


def edge(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_edge_tls(parser)
    return parser.parse_args(words)


def test_a_verifier_speaks_plain_text_unless_told() -> None:
    check_tls(verify())
    assert server_tls(verify()) is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--tls-cert", "c"), "--tls-cert needs --tls-key"),
        (("--tls-key", "k"), "--tls-key needs --tls-cert"),
        (("--tls-client-ca", "a"), "--tls-client-ca needs --tls-cert"),
        (("--tls-cert", "c", "--tls-key", "k"), "the TLS certificate c with the key k cannot be used"),
    ],
)
def test_a_verifiers_files_must_go_together(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_tls(verify(*words))


def test_an_edge_speaks_tls_when_any_of_it_is_named() -> None:
    from edge_client.tls import TlsSettings

    assert edge_tls(edge()) is None
    assert edge_tls(edge("--insecure")) is None
    assert edge_tls(edge("--tls")) == TlsSettings()
    assert edge_tls(edge("--tls-ca", "a", "--tls-name", "gpu")) == TlsSettings(Path("a"), server_name="gpu")
    assert edge_tls(edge("--token-file", "t")) == TlsSettings(token_file=Path("t")), "never without TLS"
    own = edge_tls(edge("--tls-cert", "c", "--tls-key", "k"))
    assert own == TlsSettings(cert=Path("c"), key=Path("k"))


def test_an_edge_is_not_both_encrypted_and_not() -> None:
    with pytest.raises(UserError, match="--insecure allows plain text, and TLS is asked for"):
        edge_tls(edge("--tls", "--insecure"))
    with pytest.raises(UserError, match="needs its key"):
        edge_tls(edge("--tls-cert", "c"))


@pytest.mark.parametrize(
    ("address", "words"), [("gpu", "no HOST:PORT"), ("10.0.0.1:7", "without TLS everybody")]
)
def test_a_verifier_that_is_no_address_is_refused_before_the_model_is_read(
    address: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from forerun.cli import main

    assert main(["edge", "complete", "--verifier", address, "--draft", "none.gguf", "--prompt", "x"]) != 0
    assert words in capsys.readouterr().err
