"""Laws of the prior's file: it reads back, and one that is none is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.calibration import SHIPPED
from common.errors import UserError
from edge_client.draft.prior_file import FORMAT, VERSION, point_as_json, read_priors
from tests import wording

POINTS = [point_as_json(temperature, prior) for temperature, prior in SHIPPED.points]


def written(path: Path, **changed: Any) -> Path:
    document = {"format": FORMAT, "version": VERSION, "points": POINTS, "date": None} | changed
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_priors(written(tmp_path / "prior.json", note="of no concern")) == SHIPPED


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "forerun recording"},
        {"version": 2},
        {"points": None},
        {"points": []},
        {"points": [7]},
        {"points": [POINTS[0] | {"rest": "1"}]},
        {"points": [POINTS[0] | {"miss": True}]},
        {"points": [POINTS[0] | {"sharpness": 0}]},
        {"points": [POINTS[0] | {"rest_spread": 0}]},
        {"points": POINTS[::-1]},
    ],
)
def test_a_file_that_is_no_prior_says_what_is_wrong(tmp_path: Path, changed: dict[str, Any]) -> None:
    with wording.raises(UserError):
        read_priors(written(tmp_path / "prior.json", **changed))


@pytest.mark.parametrize("content", [None, b"{", b"\xff", b"[" * 100_000])
def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prior.json"
    if content is not None:
        path.write_bytes(content)
    with wording.raises(UserError):
        read_priors(path)
