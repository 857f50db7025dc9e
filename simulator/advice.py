"""Advises on the best mode in a world, by simulating the candidates rather than by a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.experiment import Pool, SchemeOutcome, run_experiments
from simulator.figures import Figures, as_json
from simulator.files import Experiment
from simulator.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST
from simulator.world import World

MODES = (SERVER_STREAMING, SYNC_BEST, FORERUN)
WORTH_IT = 1.05  # times faster than streaming; less is not worth a device's battery
LONGEST_RTT = 2.0  # seconds; beyond it nobody waits for a text
CLOSE_ENOUGH = 0.05  # of the break-even round trip: the search ends
CLOSEST = 0.001  # seconds; so does it here, for break-evens near 0


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Advice:
    """Reports the findings. Speed-ups over server streaming: how many times fewer ms per token."""

    figures: dict[str, Figures]  # by mode, at the RTT asked about
    best: str
    break_even_rtt: float | None  # seconds; Forerun is worth it below; None: nowhere
    is_beyond: bool  # it is worth it even at `LONGEST_RTT`

    def speedup(self, mode: str) -> float:
        return self.figures[SERVER_STREAMING].ms_per_token / self.figures[mode].ms_per_token


def advise(
    world: World, repeats: int = 3, workers: int = 0, progress: Progress = lambda text: None
) -> Advice:
    """Try the modes in `world`, then Forerun over other round trips. Takes seconds of computing."""
    with Pool(workers) as pool:
        progress("trying the modes")
        (outcomes,) = _run([world], MODES, repeats, pool)
        figures = {outcome.scheme: outcome.figures for outcome in outcomes}
        best = min(figures, key=lambda mode: figures[mode].ms_per_token)
        pays = figures[SERVER_STREAMING].ms_per_token / figures[FORERUN].ms_per_token >= WORTH_IT
        progress("looking for the round trip at which drafting stops paying")
        return Advice(figures, best, *break_even(world, pays, repeats, pool))


def in_words(world: World, advice: Advice) -> list[str]:
    """Return sentences for a person who has to decide."""
    ours = advice.figures[FORERUN]
    cost = (
        f"With Forerun a token costs the server {ours.target_steps_per_token:.2f} steps and "
        f"{ours.evaluated_nodes_per_token:.1f} rows in place of 1 and 1, and the device "
        f"{ours.draft_evaluations_per_token:.0f} rows of its draft."
    )
    return [_which_mode(world, advice), cost, _classic(advice), _where_it_ends(advice)]


def _which_mode(world: World, advice: Advice) -> str:
    ours, alone = advice.figures[FORERUN].ms_per_token, advice.figures[SERVER_STREAMING].ms_per_token
    rtt, gain = world.link.rtt * 1e3, advice.speedup(FORERUN)
    if gain >= WORTH_IT:
        return (
            f"Draft on the device: at {rtt:g} ms Forerun writes {gain:.2f} times as fast as server "
            f"streaming, {ours:.1f} in place of {alone:.1f} ms per token."
        )
    change = f"gains {100 * (gain - 1):.0f} %" if gain >= 1 else f"loses {100 * (1 - gain):.0f} %"
    return (
        f"Let the server stream: at {rtt:g} ms drafting ahead {change}, which is not worth the device's work."
    )


def _classic(advice: Advice) -> str:
    """Return the best synchronous block, against both."""
    gain = advice.speedup(SYNC_BEST)
    against = "faster" if gain > 1 else "slower"
    also = ", and faster than drafting ahead" if advice.best == SYNC_BEST else ""
    return f"The best synchronous block is {against} than streaming{also}: {gain:.2f} times as fast."


def _where_it_ends(advice: Advice) -> str:
    if advice.is_beyond:
        return f"Drafting ahead pays even at a round trip of {LONGEST_RTT:g} s."
    if advice.break_even_rtt is None:
        return "Drafting ahead does not pay here, not even without any distance."
    return (
        f"Drafting ahead pays (by {100 * (WORTH_IT - 1):.0f} % or more) up to a round trip of about "
        f"{advice.break_even_rtt * 1e3:.0f} ms."
    )


def break_even(
    world: World, pays: bool, repeats: int, pool: Pool, close_enough: float = CLOSE_ENOUGH
) -> tuple[float | None, bool]:
    """Return the `Advice`'s `break_even_rtt` and `is_beyond`. `pays`: whether drafting pays in `world`.

    Bisects, as the speed-up falls while the round trip grows. The result at the world's own round trip
    bounds the search, so that the two never contradict.
    """
    here = min(world.link.rtt, LONGEST_RTT)
    low, high = (here, LONGEST_RTT) if pays else (0.0, here)
    if pays and speedup(_at(world, high), repeats, pool) >= WORTH_IT:
        return None, True
    if not pays and speedup(_at(world, low), repeats, pool) < WORTH_IT:
        return None, False
    while high - low > max(CLOSEST, close_enough * low):
        middle = 0.5 * (low + high)
        if speedup(_at(world, middle), repeats, pool) >= WORTH_IT:
            low = middle
        else:
            high = middle
    return low, False


def speedup(world: World, repeats: int, pool: Pool) -> float:
    """Return how many times fewer ms per token Forerun takes than server streaming."""
    return _speedups([world], repeats, pool)[0]


def _speedups(worlds: Sequence[World], repeats: int, pool: Pool) -> list[float]:
    return [
        alone.figures.ms_per_token / ours.figures.ms_per_token
        for alone, ours in _run(worlds, (SERVER_STREAMING, FORERUN), repeats, pool)
    ]


def _at(world: World, rtt: float) -> World:
    return replace(world, link=replace(world.link, rtt=rtt))


def _run(
    worlds: Sequence[World], schemes: Sequence[str], repeats: int, pool: Pool
) -> list[list[SchemeOutcome]]:
    experiments = [Experiment(world, repeats, tuple(schemes)) for world in worlds]
    return list(run_experiments(experiments, pool))


def advice_json(world: World, advice: Advice) -> dict[str, Any]:
    """Return the advice and the figures behind it."""
    return {
        "acceptance": round(world.draft.mean, 4),
        "best": advice.best,
        "break_even_rtt_ms": None if advice.break_even_rtt is None else round(advice.break_even_rtt * 1e3, 1),
        "pays_at_any_rtt": advice.is_beyond,
        "speedup": {mode: round(advice.speedup(mode), 3) for mode in advice.figures},
        "schemes": {mode: as_json(figures) for mode, figures in advice.figures.items()},
    }
