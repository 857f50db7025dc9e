"""Finds the layer after which the target's own head guesses best, if any does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from cloud_verifier.core.engine_protocol import GuessingEngine
from cloud_verifier.engine.drafting.models import EarlyExit
from cloud_verifier.engine.drafting.trial import NODES, try_drafter
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from common.sampling import SamplingParams

logger = logging.getLogger(__name__)

PARTS = (8, 4, 3, 2)
"""The layers tried are an eighth of the target's, a quarter, and so on."""

DEPTH = 4
"""Levels that are tried. Where an early exit does not pay with these, it does not with more."""

STARTS = ("The ", "def main(")
"""What the target continues. Any text will do: its own words are what the first layers are to foresee."""

SAMPLING = SamplingParams(temperature=0.8, max_tokens=32, ignore_eos=True)

SLOTS = 2 * (SAMPLING.max_tokens + NODES) + 16
"""KV slots of the engine that a trial needs: a start, its text and a tree."""


def best_exit(
    target: TargetModel,
    engine_of: Callable[[EarlyExit], GuessingEngine],
    starts: Sequence[Sequence[int]],
    clock: Callable[[], float] = time.perf_counter,
) -> EarlyExit | None:
    """Return the early exit with which a token of the target takes least time here, or None if none pays.

    `engine_of` makes an engine of at least `SLOTS` slots. The target continues `starts`, the token ids of
    `STARTS`. Each trial takes some 200 steps.
    """
    found, least = None, 1.0
    for num_layers in sorted({max(1, target.num_layers // part) for part in PARTS}):
        engine = engine_of(EarlyExit(target, num_layers, DEPTH))
        share = try_drafter(engine, starts, SAMPLING, clock=clock).share
        words = "early exit after layer %d: a token takes %.0f %% of the time without guesses"
        logger.info(words, num_layers, 100 * share)
        if share < least:
            found, least = num_layers, share
    if found is None:
        logger.warning("! early exit does not pay for %s on this machine: it serves without", target.name)
        return None
    return EarlyExit(target, found)
