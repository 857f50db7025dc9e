"""Implements `forerun simulate published`: runs published schemes beside their papers' claims."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import UserError
from schemes.claims.runner import Comparison, compare
from schemes.claims.table import CLAIMS
from simulator.experiment import Pool

PUBLISHED = """\
Run each published scheme in its paper's own setting, beside the paper's own baselines. Report the claim, the
figure found here and the difference (docs/schemes.md)."""


@dataclass(frozen=True, kw_only=True)
class PublishedOptions:
    """Declares which claims are compared."""

    system: tuple[str, ...] = setting((), "only this system's claims; may be repeated", "NAME")
    workers: int = setting(0, "number of processes; 0: one per processor", "N")
    json: bool = setting(False, "print JSON instead of text")


def add_parser(commands: Any) -> None:
    words = "run published schemes in their papers' own settings, beside their claims"
    add_command(commands, "published", words, _published, PublishedOptions, PUBLISHED)


def _published(options: PublishedOptions) -> int:
    systems = dict.fromkeys(claim.system for claim in CLAIMS)
    for name in options.system:
        if name not in systems:
            raise UserError(f"--system {name!r} has no claim; choose from {', '.join(systems)}")
    chosen = [claim for claim in CLAIMS if not options.system or claim.system in options.system]
    with Pool(options.workers) as pool:
        comparisons = list(compare(chosen, pool))
    if options.json:
        print(json.dumps([_comparison_as_json(each) for each in comparisons], indent=2))
        return 0
    width = max(len(each.claim.quantity) for each in comparisons)
    for each in comparisons:
        claim = each.claim
        figures = f"{claim.figure:8.3g} claimed {each.ours:8.3g} here  {_verdict(each)}"
        print(f"{claim.system:12} {claim.quantity:{width}} {figures}")
    remarks = ((each.claim.system, each.claim.remark) for each in comparisons if each.claim.remark)
    for system, remark in dict.fromkeys(remarks):
        print(f"- {system}: {remark}")
    return 0


def _verdict(comparison: Comparison) -> str:
    if comparison.difference is not None and comparison.claim.within is not None:
        words = f"{100 * comparison.difference:+.1f} % (bound {100 * comparison.claim.within:g} %)"
        return words if comparison.holds else f"{words}: not reproduced"
    words = "same direction" if comparison.always_holds else "not always the same direction"
    return words + (", {:.3g} to {:.3g}".format(*comparison.range) if comparison.others else "")


def _comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "system": comparison.claim.system,
        "quantity": comparison.claim.quantity,
        "claim": comparison.claim.figure,
        "ours": round(comparison.ours, 4),
        "difference": None if comparison.difference is None else round(comparison.difference, 4),
        "range": [round(each, 4) for each in comparison.range] if comparison.others else None,
        "within": comparison.claim.within,
        "holds": comparison.holds,
        "remark": comparison.claim.remark,
    }
