"""Laws of the date that is read from a certificate: the right one, or none."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.certificate import _end, end_of_file


@pytest.mark.parametrize("year", [2020, 2049, 2050, 2099])
def test_the_end_is_the_certificates(year: int, tmp_path: Path) -> None:
    """From 2050 on dates are written in another way."""
    trustme = pytest.importorskip("trustme")
    end = datetime.datetime(year, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
    issued = trustme.CA().issue_cert("device.example", not_after=end)
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    assert end_of_file(tmp_path / "both.pem") == end


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no certificate",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n\xff\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate_has_no_end(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_bytes(content)
    assert end_of_file(tmp_path / "x.pem") is None


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_end_in_one_of_the_known_errors(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError, StopIteration)):
        _end(data)
