"""`--privacy` of a verifier and of the edges' commands (docs/privacy.md)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from common.privacy import LEVELS, Privacy
from forerun.options import ms

if TYPE_CHECKING:
    from cloud_verifier.line import PrivacySettings


def add_privacy(parser: argparse.ArgumentParser) -> None:
    """What a verifier insists on."""
    option = parser.add_argument
    option(
        "--privacy",
        default=Privacy.PADDED.title,
        choices=LEVELS,
        help="least privacy of message sizes and times: padded gives all of a direction one size, "
        "strict lets them leave at fixed times, too. Edges may ask for more (%(default)s; docs/privacy.md)",
    )
    option(
        "--cadence-ms",
        dest="cadence",
        type=ms,
        default=0.0,
        metavar="MS",
        help="time from frame to frame where privacy is strict; 0: as long as a step takes (%(default)s)",
    )


def add_edge_privacy(parser: argparse.ArgumentParser) -> None:
    """What an edge asks for."""
    parser.add_argument(
        "--privacy",
        default=Privacy.PADDED.title,
        choices=LEVELS,
        help="privacy of message sizes and times; the verifier may insist on a stricter level "
        "(%(default)s; docs/privacy.md)",
    )


def privacy_from(options: argparse.Namespace) -> PrivacySettings:
    """Of a verifier's options. Raises `UserError`."""
    from cloud_verifier.line import PrivacySettings  # gRPC comes with it, and takes a while
    from common.privacy import privacy_named

    return PrivacySettings(privacy_named(options.privacy), options.cadence)


def privacy_in_words(options: argparse.Namespace) -> str:
    """What holds, and what it costs, before any step was measured."""
    from cloud_verifier.core.cost import StepCost

    return privacy_from(options).in_words(max(options.step_floor, StepCost().predict(1, 0)))
