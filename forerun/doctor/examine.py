"""Runs all checks in the order of their dependences, and last predicts the speed-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from common.errors import UserError
from common.llama.load_trial import ModelTrials
from edge_client.process.paths import EdgePaths
from edge_client.settings import EdgeConfig
from forerun.doctor.device import (
    SAYS_IT,
    Finding,
    check_daemon,
    check_load,
    check_python,
    check_token,
    fail,
    ok,
    skip,
    warn,
)
from forerun.doctor.draft import MeasuredPair, check_draft
from forerun.doctor.link import LinkFound, check_link, tls_for

WORTH_IT = 1.05  # times faster than streaming; less is not worth a device's battery
LONGEST_RTT = 2.0  # seconds; beyond it nobody waits for a text
TEXTS_DIFFER = 1.3  # factor between the outlook and doctor's own two texts that is worth a warning
SHARES = (0.05, 0.98)  # of right drafts that are believed; 32 tokens say no more

Progress = Callable[[str], None]


def examine(config: EdgeConfig, paths: EdgePaths, progress: Progress) -> Iterator[Finding]:
    """Yield every finding as soon as it is known."""
    yield check_python()
    yield check_load()
    yield check_token(config.api, paths)
    yield check_daemon(config.api, paths)
    for name, pair in config.each_pair.items():
        for finding in _examine_pair(pair, paths, progress):
            yield replace(finding, name=f"{name} {finding.name}".strip())


def _examine_pair(config: EdgeConfig, paths: EdgePaths, progress: Progress) -> Iterator[Finding]:
    """Yield the findings about one pair of a draft model and verifiers, last the prediction."""
    progress("asking the verifiers")
    nearest: LinkFound | None = None
    for address in config.verifier.addresses:
        try:
            link = check_link(address, tls_for(config.verifier, address))
        except UserError as error:
            link = LinkFound(address, (fail(address, str(error), SAYS_IT),))
        yield from link.findings
        if link.rtt is not None and (nearest is None or link.rtt < (nearest.rtt or 0.0)):
            nearest = link
    progress("loading the draft")
    address = nearest.address if nearest is not None else ""
    tls = tls_for(config.verifier, address) if address else None
    measured = yield from check_draft(config.draft, ModelTrials(paths.tried), address, tls)
    if nearest is not None:
        measured = replace(measured, rtt=nearest.rtt, row_share=row_share(nearest.step_times))
    yield check_outlook(measured)


def row_share(step_times: Mapping[int, float]) -> float:
    """Return what a further row adds to a step, as a share of a step of one row. `step_times`: seconds by
    rows."""
    rows = max(step_times, default=1)
    if rows == 1 or 1 not in step_times:
        return 0.0
    return max(0.0, (step_times[rows] / step_times[1] - 1.0) / (rows - 1))


@dataclass(frozen=True, slots=True)
class SpeedOutlook:
    """Holds the prediction."""

    speedup: float  # over streaming
    break_even: float | None  # seconds of RTT up to which drafting pays; None: nowhere, or everywhere
    pays_everywhere: bool = False


def check_outlook(measured: MeasuredPair) -> Finding:
    """Predict speed-up and break-even RTT."""
    if measured.missing:
        return skip("outlook", f"not known: {', '.join(measured.missing)}")
    outlook = look_ahead(measured)
    words = in_words(measured, outlook)
    if measured.seen and not 1 / TEXTS_DIFFER <= measured.seen / outlook.speedup <= TEXTS_DIFFER:
        doubt = (
            f"{words}. The two texts just written give {measured.seen:.1f} times, so do not rely on this: "
            "other work on this machine, or a draft and a verifier on the same processors, slow both"
        )
        return warn("outlook", doubt, "stop other work and run doctor again; give each side --threads")
    return (ok if outlook.speedup >= WORTH_IT else warn)("outlook", words)


def look_ahead(measured: MeasuredPair) -> SpeedOutlook:
    """Predict by a formula; all inputs must be known.

    After a miss the server writes alone, a token a step of t seconds, until drafts are ahead of it: with
    d seconds a token and a round trip of R that takes c = 1 + R / (t - d) tokens. The tokens behind them come
    as fast as they are drafted or evaluated, in a seconds. With a share m of right drafts the next miss comes
    after c tokens with chance m^c, so a token takes t (1 - m^c) + a m^c seconds on average.
    """
    assert measured.rtt is not None
    assert measured.step_time is not None
    assert measured.draft_time is not None
    assert measured.acceptance is not None
    step, draft = measured.step_time, measured.draft_time
    right = min(max(measured.acceptance, SHARES[0]), SHARES[1])
    ahead = max(draft, step * measured.row_share)
    if ahead >= step:
        return SpeedOutlook(1.0, None)
    lead = step - draft  # seconds that drafting gains on the server with each token
    saved = (1.0 - ahead / step) * right ** (1.0 + measured.rtt / lead)
    needed = (1.0 - 1.0 / WORTH_IT) / (1.0 - ahead / step)  # the least m^c that is worth it
    furthest = lead * (math.log(needed) / math.log(right) - 1.0)
    pays_everywhere = furthest > LONGEST_RTT
    break_even = furthest if 0.0 < furthest <= LONGEST_RTT else None
    return SpeedOutlook(1.0 / (1.0 - saved), break_even, pays_everywhere)


def in_words(measured: MeasuredPair, outlook: SpeedOutlook) -> str:
    """Describe the prediction in words."""
    rtt, draft, step = (
        1e3 * (each or 0.0) for each in (measured.rtt, measured.draft_time, measured.step_time)
    )
    return (
        f"with this link (RTT {rtt:.1f} ms), this draft ({draft:.1f} ms a step, right "
        f"{100 * (measured.acceptance or 0.0):.0f} % of the time) and this target ({step:.1f} ms a step) "
        f"expect {outlook.speedup:.1f} times the speed of streaming; {_where_it_pays(outlook)}"
    )


def _where_it_pays(outlook: SpeedOutlook) -> str:
    if outlook.pays_everywhere:
        return f"drafting pays even at an RTT of {LONGEST_RTT:g} s"
    if outlook.break_even is None:
        return (
            "drafting does not pay here at any RTT: a faster draft, one that is right more often, or a "
            "target whose steps hold several rows at less cost, might"
        )
    return f"drafting pays up to an RTT of about {outlook.break_even * 1e3:.0f} ms"
