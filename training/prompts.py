"""Reads the prompts of the demo models."""

from __future__ import annotations

import json
from collections.abc import Sequence

from common.errors import UnavailableError, UserError
from training import demo_pair


def bundled() -> list[str]:
    """Return all prompts of the demo models. Raise `UnavailableError` outside a clone."""
    if not demo_pair.PROMPTS.exists():
        raise UnavailableError(f"{demo_pair.PROMPTS} is missing; run from a clone, or give your own prompts")
    return [entry["text"] for entry in json.loads(demo_pair.PROMPTS.read_text(encoding="utf-8"))]


def some_of(texts: Sequence[str], count: int) -> list[str]:
    """Return the first `count` texts. Raise `UserError` if there are fewer."""
    if not 1 <= count <= len(texts):
        raise UserError(f"--num-prompts is {count}; there are {len(texts)} prompts")
    return list(texts[:count])
