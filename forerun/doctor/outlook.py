"""What to expect of this device, this link and this target: by the simulator, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from forerun.doctor.finding import Finding, ok, skip, warn
from simulator.advice import LONGEST_RTT, WORTH_IT
from simulator.drafts import BetaDraft
from simulator.experiment import run_experiments
from simulator.files import Experiment
from simulator.link import LinkSpec
from simulator.pool import Pool
from simulator.schemes import FORERUN, SERVER_STREAMING
from simulator.world import DeviceSpec, VerifierSpec, World

TOKENS = 200  # of a simulated text, as `forerun simulate advise` has it, but one seed and no map: a second
FURTHER_ROW = 0.5  # of a draft step, where only a person has told its time: no table was measured
TEXTS_DIFFER = 1.3  # factor between the outlook and doctor's own two texts that is worth a warning
CLOSE_ENOUGH = 1.3  # factor between two round trips that are not told apart
SHORTEST = 0.002  # seconds; the search for the break-even begins there
SHARES = (0.05, 0.98)  # of right drafts, that the simulator is asked about; 32 tokens say no more


@dataclass(frozen=True, slots=True)
class Measured:
    """What the outlook rests on. Times in seconds; None: not known."""

    rtt: float | None
    step_time: float | None  # of the target
    draft_time: float | None
    acceptance: float | None  # how often the draft's best token is the target's
    rows: Mapping[int, float] = field(default_factory=dict)  # seconds of a draft step by its rows, measured
    reads: Mapping[int, float] = field(default_factory=dict)  # that reading so many tokens adds
    seen: float | None = None  # speed-up of doctor's own text with drafts over the one without

    @property
    def missing(self) -> list[str]:
        """In words, with the option that tells it."""
        named = (
            (self.rtt, "the RTT (--rtt)"),
            (self.step_time, "the target's step (--step)"),
            (self.draft_time, "the draft's step (--draft-step)"),
            (self.acceptance, "how often drafts are right (--acceptance)"),
        )
        return [words for value, words in named if value is None]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the simulator says."""

    speedup: float  # over streaming
    break_even: float | None  # seconds of RTT up to which drafting pays; None: nowhere, or everywhere
    pays_everywhere: bool = False


def check_outlook(measured: Measured) -> tuple[Finding, Outlook | None]:
    """Expected speed-up and break-even."""
    if measured.missing:
        return skip("outlook", f"not known: {', '.join(measured.missing)}"), None
    outlook = look_ahead(world_of(measured))
    words = in_words(measured, outlook)
    if measured.seen and not 1 / TEXTS_DIFFER <= measured.seen / outlook.speedup <= TEXTS_DIFFER:
        doubt = (
            f"{words}. The two texts written just now say {measured.seen:.1f} times, so do not rely on it: "
            "other work on this machine, or a draft and a verifier on the same processors, slow both"
        )
        return warn("outlook", doubt, "stop other work and ask again; give each side --threads"), outlook
    return (ok if outlook.speedup >= WORTH_IT else warn)("outlook", words), outlook


def world_of(measured: Measured) -> World:
    """As the simulator has it. All must be known."""
    assert measured.rtt is not None
    assert measured.step_time is not None
    assert measured.draft_time is not None
    assert measured.acceptance is not None
    return World(
        link=LinkSpec(rtt=min(measured.rtt, LONGEST_RTT)),
        device=_device(measured, measured.draft_time),
        verifier=VerifierSpec(step_time=measured.step_time),
        draft=BetaDraft(mean=min(max(measured.acceptance, SHARES[0]), SHARES[1])),
        tokens=TOKENS,
    )


def _device(measured: Measured, draft_time: float) -> DeviceSpec:
    """With its measured table, scaled to what a person says that a step takes."""
    if not measured.rows:
        return DeviceSpec(draft_time, FURTHER_ROW * draft_time)
    scale = draft_time / measured.rows[1]
    rows = tuple((size, scale * took) for size, took in sorted(measured.rows.items()))
    reads = tuple((size, scale * took) for size, took in sorted(measured.reads.items()))
    return DeviceSpec(draft_time, draft_times=rows, read_times=reads)


def look_ahead(world: World) -> Outlook:
    """Seconds of computing."""
    with Pool(1) as pool:
        here = _speedup(world, world.link.rtt, pool)
        if here >= WORTH_IT:
            low, high = max(world.link.rtt, SHORTEST), LONGEST_RTT
            if _speedup(world, high, pool) >= WORTH_IT:
                return Outlook(here, None, True)
        else:
            low, high = SHORTEST, max(world.link.rtt, SHORTEST)
            if _speedup(world, low, pool) < WORTH_IT:
                return Outlook(here, None)
        while high > CLOSE_ENOUGH * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if _speedup(world, middle, pool) >= WORTH_IT else (low, middle)
    return Outlook(here, low)


def in_words(measured: Measured, outlook: Outlook) -> str:
    """For a person."""
    rtt, draft, step = (
        1e3 * (each or 0.0) for each in (measured.rtt, measured.draft_time, measured.step_time)
    )
    return (
        f"with this link (RTT {rtt:.1f} ms), this draft ({draft:.1f} ms a step, right "
        f"{100 * (measured.acceptance or 0.0):.0f} % of the time) and this target ({step:.1f} ms a step) "
        f"expect {outlook.speedup:.1f} times the speed of streaming; {_where_it_pays(outlook)}"
    )


def _where_it_pays(outlook: Outlook) -> str:
    if outlook.pays_everywhere:
        return f"drafting pays even at an RTT of {LONGEST_RTT:g} s"
    if outlook.break_even is None:
        return "drafting does not pay here at any RTT: a faster draft, or one that is right more often, might"
    return f"drafting pays up to an RTT of about {outlook.break_even * 1e3:.0f} ms"


def _speedup(world: World, rtt: float, pool: Pool) -> float:
    there = replace(world, link=replace(world.link, rtt=rtt))
    (outcomes,) = run_experiments([Experiment(there, 1, (SERVER_STREAMING, FORERUN))], pool)
    alone, ours = outcomes
    return alone.figures.ms_per_token / ours.figures.ms_per_token
