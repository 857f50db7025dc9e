"""Laws of the prior's file: it reads back, and one that is none is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from edge_client.core.priors import SHIPPED
from edge_client.prior_file import FORMAT, VERSION, point_as_json, read_priors

POINTS = [point_as_json(temperature, prior) for temperature, prior in SHIPPED.points]


def written(path: Path, **changed: Any) -> Path:
    document = {"format": FORMAT, "version": VERSION, "points": POINTS, "date": None} | changed
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_priors(written(tmp_path / "prior.json", note="of no concern")) == SHIPPED


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"format": "forerun recording"}, "is no prior; its format should be 'forerun prior'"),
        ({"version": 2}, "has version 2; this program reads 1"),
        ({"points": None}, "has no list of points"),
        ({"points": []}, "a table of priors is empty"),
        ({"points": [7]}, "a point has sharpness None; a number was expected"),
        ({"points": [POINTS[0] | {"rest": "1"}]}, "a point has rest '1'; a number was expected"),
        ({"points": [POINTS[0] | {"miss": True}]}, "a point has miss True; a number was expected"),
        ({"points": [POINTS[0] | {"sharpness": 0}]}, "sharpness is 0.0; it must be finite and above 0"),
        ({"points": [POINTS[0] | {"rest_spread": 0}]}, "spread is 0.0"),
        ({"points": POINTS[::-1]}, "they do not rise"),
    ],
)
def test_a_file_that_is_no_prior_says_what_is_wrong(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as refused:
        read_priors(written(tmp_path / "prior.json", **changed))
    assert words in str(refused.value)
    assert "prior.json" in str(refused.value)


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prior.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not JSON in UTF-8"):
        read_priors(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_priors(tmp_path / "none.json")
