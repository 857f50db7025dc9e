"""Law: a refusal names the field, its value and what is allowed; what is allowed comes back unchanged."""

from __future__ import annotations

import pytest

from common.errors import PeerError
from common.rpc import bounds


def test_a_number_out_of_range_is_named_with_its_range() -> None:
    assert bounds.in_range("f", 3, 0, 3) == 3
    with pytest.raises(PeerError, match=r"^f is 4; it must lie in \[0, 3\]$"):
        bounds.in_range("f", 4, 0, 3)


def test_a_length_out_of_range_is_named_with_its_unit() -> None:
    assert bounds.count("f", 2, 1, 2) == 2
    with pytest.raises(PeerError, match=r"^f has 0 entries; there must be 1 to 2$"):
        bounds.count("f", 0, 1, 2)
    with pytest.raises(PeerError, match=r"^f has 3 bytes; there must be 2$"):
        bounds.count("f", 3, 2, 2, "bytes")


def test_the_largest_token_id_is_named() -> None:
    assert bounds.tokens("f", [0, bounds.MAX_TOKEN_ID], 0, 2) == (0, bounds.MAX_TOKEN_ID)
    with pytest.raises(PeerError, match=r"^f token id is 2147483648; it must lie in \[0, 2147483647\]$"):
        bounds.tokens("f", [0, 2**31], 0, 2)


def test_text_for_logs_is_printable() -> None:
    assert bounds.text("f", "grüße 1", 7) == "grüße 1"
    with pytest.raises(PeerError, match=r"^f is 'a\\nb'; only printable characters are allowed$"):
        bounds.text("f", "a\nb", 3)


def test_bytes_are_counted() -> None:
    assert bounds.blob("f", b"ab", 2) == b"ab"
    with pytest.raises(PeerError, match=r"^f has 3 bytes; there must be 0 to 2$"):
        bounds.blob("f", b"abc", 2)
