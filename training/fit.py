"""Implements `forerun fit`: fits the initial trust in a draft, and the learned stop, to recordings of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.calibration import Prior
from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.wire.grpc_options import version
from forerun.terminal import note
from schemes.policies.pacer import StopScorer
from simulator.recordings import Recording, read_recording
from training.fitting import HELD_OUT_EVERY, LogLoss, TextSplit, fit, fit_scorer, held_against, scored, split

DESCRIPTION = f"""\
Fit the prior, an edge's initial trust in a draft's scores, to recordings of that draft. Report how well it
predicts held-out texts (every {HELD_OUT_EVERY}th), beside the shipped one. Recordings of one temperature are
fitted together.

  forerun record --out cold.jsonl --ignore-eos
  forerun record --out warm.jsonl --ignore-eos --temperature 0.8
  forerun fit cold.jsonl warm.jsonl

The last line of each temperature is the growth policy `pacer` with its learned stop (docs/adaptation.md)."""

WORDS = {
    "plain": "the draft's plain softmax",
    "shipped": "the shipped prior, never learning",
    "fitted": "the fitted prior, never learning",
    "learnt_from_shipped": "the shipped prior, learning within each text",
    "learnt_from_fitted": "the fitted prior, learning within each text",
    "kept": "the shipped prior, learning across all texts",
    "hindsight": "the best prior for these texts, with hindsight",
}
"""Label of each field of `LogLoss`."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Declares what is fitted."""

    recordings: tuple[Path, ...] = setting(
        REQUIRED, "files of `forerun record`", "RECORDING", nargs="+", is_argument=True
    )
    json: bool = setting(False, "print the priors as JSON")


def add_parser(commands: Any) -> None:
    words = "fit the initial trust in a draft to recordings of it"
    add_command(commands, "fit", words, _run, FitOptions, DESCRIPTION)


def _run(options: FitOptions) -> int:
    recordings = [read_recording(path) for path in options.recordings]
    points = list[dict[str, Any]]()
    for part in split(recordings):
        note(f"fitting {len(part.fitted)} texts of temperature {part.temperature:g}")
        prior = fit(part.fitted, part.temperature)
        surprise = held_against(part.held_out, part.temperature, prior)
        scorer = fit_scorer(part.fitted, prior)
        points.append(_point(part, prior, surprise, recordings))
        if not options.json:
            print("\n".join([*_lines(part, prior, surprise), *_pacer(part, prior, scorer)]))
    if options.json:
        print(json.dumps({"forerun": version() or None, "points": points}, indent=1))
    return 0


def _point(
    part: TextSplit, prior: Prior, surprise: LogLoss, recordings: Sequence[Recording]
) -> dict[str, Any]:
    """Return the prior as JSON, with its fitted and held-out texts."""
    own = [each for each in recordings if each.header.temperature == part.temperature]
    confidence, sharpness, rest = prior.confidence, prior.sharpness, prior.rest
    numbers = {
        "temperature": part.temperature,
        "sharpness": confidence.sharpness,
        "sharpness_spread": sharpness.spread,
        "sharpness_doubt": sharpness.doubt,
        "rest": confidence.rest,
        "rest_spread": rest.spread,
        "rest_doubt": rest.doubt,
        "miss": confidence.miss,
    }
    return {name: round(value, 4) for name, value in numbers.items()} | {
        "fitted_on": {
            "recordings": [
                {"target": each.header.target, "draft": each.header.draft, "seed": each.header.seed}
                for each in own
            ],
            **_size(part.fitted),
        },
        "held_out": {
            **_size(part.held_out),
            "nats_per_token": {name: round(nats, 4) for name, nats in asdict(surprise).items()},
        },
    }


def _pacer(part: TextSplit, prior: Prior, scorer: StopScorer) -> list[str]:
    """Format the learned stop for a terminal."""
    promise, learned = (scored(part.held_out, prior, each) for each in (StopScorer(), scorer))
    weights = ",".join(f"{name}={weight:.4g}" for name, weight in asdict(scorer).items())
    return [
        f"  nats per decision of the same tokens: {promise:.4f} by the promise, {learned:.4f} learned",
        f"  --policy pacer:{weights}",
    ]


def _size(texts: Sequence[Sequence[Any]]) -> dict[str, int]:
    return {"texts": len(texts), "tokens": sum(map(len, texts))}


def _lines(part: TextSplit, prior: Prior, surprise: LogLoss) -> list[str]:
    """Format one temperature's prior for a terminal."""
    confidence, fitted, held_out = prior.confidence, _size(part.fitted), _size(part.held_out)
    return [
        f"temperature {part.temperature:g}, fitted on {fitted['texts']} texts, {fitted['tokens']} tokens: "
        f"sharpness {confidence.sharpness:.2f} (its logarithm ± {prior.sharpness.spread:g} between texts), "
        f"rest {confidence.rest:.2f}, miss {confidence.miss:.3f}",
        f"  nats per token on {held_out['texts']} others, {held_out['tokens']} tokens:",
        *(f"    {getattr(surprise, name):.4f}  {words}" for name, words in WORDS.items()),
    ]
