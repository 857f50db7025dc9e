"""The file of a prior: what `forerun fit` writes and `forerun edge --prior` reads.

JSON: {"format": "forerun prior", "version": 1, "points": [...], ...}. A point is a temperature and the
numbers of `common.calibration`. Other keys record what the prior was fitted on:

    {"temperature": 0.8, "sharpness": 2.6, "sharpness_spread": 0.1, "sharpness_doubt": 0.02,
     "rest": 0.9, "rest_spread": 0.7, "rest_doubt": 0.15, "miss": 0.01}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.calibration import BetaPrior, Confidence, Prior, PriorTable
from common.errors import UserError

FORMAT, VERSION = "forerun prior", 1


def point_as_json(temperature: float, prior: Prior) -> dict[str, float]:
    """Return the rounded numbers of one point."""
    confidence, sharpness, rest = prior.confidence, prior.sharpness, prior.rest
    numbers = {
        "temperature": temperature,
        "sharpness": confidence.sharpness,
        "sharpness_spread": sharpness.spread,
        "sharpness_doubt": sharpness.doubt,
        "rest": confidence.rest,
        "rest_spread": rest.spread,
        "rest_doubt": rest.doubt,
        "miss": confidence.miss,
    }
    return {name: round(value, 4) for name, value in numbers.items()}


def read_priors(path: Path) -> PriorTable:
    """Read a prior's file. Raises `UserError` with the file's name and the expected content."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the prior {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # JSON's errors and UTF-8's
        raise UserError(f"the prior {path} is not JSON in UTF-8: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is no prior; its format should be {FORMAT!r} (`forerun fit` writes it)")
    if content.get("version") != VERSION:
        raise UserError(
            f"the prior {path} has version {content.get('version')!r}; this program reads {VERSION}"
        )
    points = content.get("points")
    if not isinstance(points, list):
        raise UserError(f"the prior {path} has no list of points")
    try:
        return PriorTable(tuple(_point(point) for point in points))
    except UserError as error:
        raise UserError(f"the prior {path}: {error}") from error


def _point(point: Any) -> tuple[float, Prior]:
    confidence = Confidence(*(_number(point, name) for name in ("sharpness", "rest", "miss")))
    sharpness, rest = (
        BetaPrior(_number(point, f"{name}_spread"), _number(point, f"{name}_doubt"))
        for name in ("sharpness", "rest")
    )
    return _number(point, "temperature"), Prior(confidence, sharpness, rest)


def _number(point: Any, name: str) -> float:
    value = point.get(name) if isinstance(point, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e9 < value < 1e9:
        raise UserError(f"a point has {name} {value!r}; it must be a number")
    return float(value)
