"""Runs all checks in the order of their dependences, and last the simulator's prediction."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.errors import UserError
from edge_client.process.paths import EdgePaths
from edge_client.settings import EdgeConfig
from forerun.doctor.broker import check_fleet
from forerun.doctor.device import (
    Finding,
    check_daemon,
    check_disk,
    check_python,
    check_token,
    fail,
    ok,
    skip,
    warn,
)
from forerun.doctor.draft import ChildQuestion, DraftReport, ask_child, check_child, find_file
from forerun.doctor.link import LinkFound, check_link, tls_for
from simulator.advice import LONGEST_RTT, WORTH_IT, break_even, speedup
from simulator.drafts import BetaDraft
from simulator.experiment import Pool
from simulator.link import LinkSpec
from simulator.world import DeviceSpec, VerifierSpec, World

TOKENS = 200  # of a simulated text, as `forerun simulate advise` has it, but one seed and no map: a second
FURTHER_ROW = 0.5  # of a draft step, where only the user gave its time and no table was measured
TEXTS_DIFFER = 1.3  # factor between the outlook and doctor's own two texts that is worth a warning
CLOSE_ENOUGH = 0.3  # of the break-even round trip: the search ends
SHARES = (0.05, 0.98)  # of right drafts, that the simulator is asked about; 32 tokens say no more

Progress = Callable[[str], None]

CONTEXT = 2048  # tokens, where the configuration says auto


def examine(
    config: EdgeConfig, paths: EdgePaths, given: MeasuredPair, progress: Progress
) -> Iterator[Finding]:
    """Yield every finding as soon as it is known."""
    yield check_python()
    yield check_disk(paths.state)
    yield check_token(config.api, paths)
    yield check_daemon(config.api, paths)
    pairs = dict[str, MeasuredPair]()
    for name, pair in config.each_pair.items():
        pairs[name] = yield from _examine_pair(name, pair, paths, given, progress)
    progress("asking the broker")
    yield from check_fleet(config.fleet, paths.state)
    progress("looking ahead")
    for name, found in pairs.items():
        yield _of(name, check_outlook(found))


Findings = Generator[Finding, None, "MeasuredPair"]


def _of(pair: str, finding: Finding) -> Finding:
    return replace(finding, name=f"{pair} {finding.name}".strip())


def _examine_pair(
    name: str, config: EdgeConfig, paths: EdgePaths, given: MeasuredPair, progress: Progress
) -> Findings:
    """Yield the findings about one pair of a draft model and verifiers; return what they measured."""
    progress("asking the verifiers")
    nearest: LinkFound | None = None
    for address in config.verifier.addresses:
        try:
            link = check_link(address, tls_for(config.verifier, address))
        except UserError as error:
            link = LinkFound(address, (fail(address, str(error)),))
        yield from (_of(name, each) for each in link.findings)
        if link.rtt is not None and (nearest is None or link.rtt < (nearest.rtt or 0.0)):
            nearest = link
    progress("loading the draft")
    path, findings = find_file(config.draft)
    yield from (_of(name, each) for each in findings)
    draft, address = config.draft, nearest.address if nearest is not None else ""
    asked = ChildQuestion(
        path,
        draft.context or CONTEXT,
        draft.threads,
        draft.gpu_layers,
        address,
        tls_for(config.verifier, address) if address else None,
    )
    told = ask_child(asked)
    yield from (_of(name, each) for each in check_child(asked, told))
    return measured(told, nearest, given)


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """Holds the inputs of the prediction. Times are in seconds; None means unknown."""

    rtt: float | None = None
    step_time: float | None = None  # of the target
    draft_time: float | None = None
    acceptance: float | None = None  # how often the draft's best token is the target's
    rows: Mapping[int, float] = field(default_factory=dict)  # seconds of a draft step by its rows, measured
    reads: Mapping[int, float] = field(default_factory=dict)  # that reading so many tokens adds
    step_times: Mapping[int, float] = field(default_factory=dict)  # seconds of a target step by rows, if told
    seen: float | None = None  # speed-up of doctor's own text with drafts over the one without

    @property
    def missing(self) -> list[str]:
        """Return the unknown inputs, each with the option that gives it."""
        named = (
            (self.rtt, "the RTT (--rtt)"),
            (self.step_time, "the target's step (--step)"),
            (self.draft_time, "the draft's step (--draft-step)"),
            (self.acceptance, "how often drafts are right (--acceptance)"),
        )
        return [words for value, words in named if value is None]


def measured(told: DraftReport, nearest: LinkFound | None, given: MeasuredPair) -> MeasuredPair:
    """Merge all measured values; values `given` by the user override them."""
    draft_ms = told.number("steps", "step_ms")
    right, of = told.number("rank", "right"), told.number("rank", "of")
    found = MeasuredPair(
        rtt=nearest.rtt if nearest is not None else None,
        step_time=told.plain["step_ms"] / 1e3 if told.plain is not None and told.plain["step_ms"] else None,
        draft_time=draft_ms / 1e3 if draft_ms is not None else None,
        acceptance=right / of if right is not None and of else None,
        rows=told.table("pace", "rows"),
        reads=told.table("pace", "reads"),
        step_times=nearest.step_times if nearest is not None else {},
        seen=_speedup(told),
    )
    names = ("rtt", "step_time", "draft_time", "acceptance")
    return replace(
        found, **{name: getattr(given, name) for name in names if getattr(given, name) is not None}
    )


def _speedup(told: DraftReport) -> float | None:
    """Return the speed-up of the text with drafts over the one without; None without both."""
    if told.plain is None or told.drafted is None or not told.drafted["ms_per_token"]:
        return None
    return float(told.plain["ms_per_token"] / told.drafted["ms_per_token"])


@dataclass(frozen=True, slots=True)
class SpeedOutlook:
    """Holds the simulator's prediction."""

    speedup: float  # over streaming
    break_even: float | None  # seconds of RTT up to which drafting pays; None: nowhere, or everywhere
    pays_everywhere: bool = False


def check_outlook(measured: MeasuredPair) -> Finding:
    """Predict speed-up and break-even RTT."""
    if measured.missing:
        return skip("outlook", f"not known: {', '.join(measured.missing)}")
    outlook = look_ahead(world_of(measured))
    words = in_words(measured, outlook)
    if measured.seen and not 1 / TEXTS_DIFFER <= measured.seen / outlook.speedup <= TEXTS_DIFFER:
        doubt = (
            f"{words}. The two texts just written give {measured.seen:.1f} times, so do not rely on this: "
            "other work on this machine, or a draft and a verifier on the same processors, slow both"
        )
        return warn("outlook", doubt, "stop other work and run doctor again; give each side --threads")
    return (ok if outlook.speedup >= WORTH_IT else warn)("outlook", words)


def world_of(measured: MeasuredPair) -> World:
    """Build the simulator's world. All inputs must be known."""
    assert measured.rtt is not None
    assert measured.step_time is not None
    assert measured.draft_time is not None
    assert measured.acceptance is not None
    return World(
        link=LinkSpec(rtt=min(measured.rtt, LONGEST_RTT)),
        device=_device(measured, measured.draft_time),
        verifier=_verifier(measured, measured.step_time),
        draft=BetaDraft(mean=min(max(measured.acceptance, SHARES[0]), SHARES[1])),
        tokens=TOKENS,
    )


def _device(measured: MeasuredPair, draft_time: float) -> DeviceSpec:
    """Build the device from its measured times, scaled to the given step time."""
    if not measured.rows:
        return DeviceSpec(draft_time, FURTHER_ROW * draft_time)
    scale = draft_time / measured.rows[1]
    rows = tuple((size, scale * took) for size, took in sorted(measured.rows.items()))
    reads = tuple((size, scale * took) for size, took in sorted(measured.reads.items()))
    return DeviceSpec(draft_time, draft_times=rows, read_times=reads)


def _verifier(measured: MeasuredPair, step_time: float) -> VerifierSpec:
    """Build the verifier from the times that it tells, scaled to the given step time."""
    if 1 not in measured.step_times:
        return VerifierSpec(step_time)
    scale = step_time / measured.step_times[1]
    further = {rows: scale * took for rows, took in measured.step_times.items() if rows > 1}
    return VerifierSpec(step_time, step_times=((1, step_time), *sorted(further.items())))


def look_ahead(world: World) -> SpeedOutlook:
    """Simulate the world. This takes seconds of computing."""
    with Pool(1) as pool:
        here = speedup(world, 1, pool)
        return SpeedOutlook(here, *break_even(world, here >= WORTH_IT, 1, pool, CLOSE_ENOUGH))


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
