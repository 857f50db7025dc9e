"""`forerun fit`: how far to trust a draft before its first text, from recordings of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.rpc.version import version
from edge_client.core.confidence import Prior
from edge_client.prior_file import FORMAT, VERSION, point_as_json
from forerun.paint import note
from simulator.canvas import check_drawing
from simulator.documents import write_error, write_whole
from simulator.fitting import HELD_OUT_EVERY, Split, Surprise, fit, held_against, split
from simulator.recordings import Recording, read_recording
from simulator.reliability_plot import Reliability, plot_reliability

DESCRIPTION = f"""\
Fits what an edge believes of a draft's scores before its first text (its prior) to recordings of that draft,
and says what it is worth on texts that it was not fitted on: every {HELD_OUT_EVERY}th.
Recordings of one temperature are taken together.

  forerun record --out cold.jsonl --ignore-eos
  forerun record --out warm.jsonl --ignore-eos --temperature 0.8
  forerun fit cold.jsonl warm.jsonl --out prior.json
  forerun edge --prior prior.json ..."""

WORDS = {
    "plain": "the draft's softmax as it is",
    "shipped": "the shipped prior, never learning",
    "fitted": "the fitted prior, never learning",
    "learnt_from_shipped": "learnt on the way from the shipped prior",
    "learnt_from_fitted": "learnt on the way from the fitted prior",
    "kept": "learnt from the shipped prior on, kept from text to text",
    "hindsight": "the one best for these texts, with hindsight",
}
"""Of each field of `Surprise`."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "fit",
        help="fit how far a draft is trusted at first to recordings of it",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("recordings", type=Path, nargs="+", metavar="RECORDING", help="files of `forerun record`")
    option("--out", type=Path, metavar="FILE", help="write the prior there, for `forerun edge --prior FILE`")
    option("--date", metavar="TEXT", help="noted in the file, for people; none by default")
    option("--plot", type=Path, metavar="FILE", help="draw promised and observed chances (png, svg or pdf)")
    option("--json", action="store_true", help="print what --out writes")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.plot is not None:
        check_drawing()
    recordings = [read_recording(path) for path in options.recordings]
    parts = split(recordings)
    priors, points = list[Prior](), list[dict[str, Any]]()
    for part in parts:
        note(f"fitting {len(part.fitted)} texts of temperature {part.temperature:g}")
        prior = fit(part.fitted, part.temperature)
        surprise = held_against(part.held_out, part.temperature, prior)
        priors.append(prior)
        points.append(_point(part, prior, surprise, recordings))
        if not options.json:
            print("\n".join(_lines(part, prior, surprise)))
    document = {"format": FORMAT, "version": VERSION, "forerun": version() or None, "date": options.date}
    _finish(options, document | {"points": points})
    if options.plot is not None:
        rows = zip(parts, priors, strict=True)
        plot_reliability(
            [Reliability(part.temperature, part.held_out, prior) for part, prior in rows], options.plot
        )
    return 0


def _finish(options: argparse.Namespace, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1) + "\n"
    if options.json:
        print(text, end="")
    if options.out is not None:
        try:
            write_whole(options.out, text)
        except OSError as error:
            raise write_error(f"the prior cannot be written to {options.out}", error) from error


def _point(part: Split, prior: Prior, surprise: Surprise, recordings: Sequence[Recording]) -> dict[str, Any]:
    """The numbers, and what they were fitted on and held against."""
    own = [each for each in recordings if each.header.temperature == part.temperature]
    return point_as_json(part.temperature, prior) | {
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


def _size(texts: Sequence[Sequence[Any]]) -> dict[str, int]:
    return {"texts": len(texts), "tokens": sum(map(len, texts))}


def _lines(part: Split, prior: Prior, surprise: Surprise) -> list[str]:
    """For people."""
    confidence, fitted, held_out = prior.confidence, _size(part.fitted), _size(part.held_out)
    return [
        f"temperature {part.temperature:g}, fitted on {fitted['texts']} texts, {fitted['tokens']} tokens: "
        f"sharpness {confidence.sharpness:.2f} (its logarithm ± {prior.sharpness.spread:g} between texts), "
        f"rest {confidence.rest:.2f}, miss {confidence.miss:.3f}",
        f"  nats per token on {held_out['texts']} others, {held_out['tokens']} tokens:",
        *(f"    {getattr(surprise, name):.4f}  {words}" for name, words in WORDS.items()),
    ]
