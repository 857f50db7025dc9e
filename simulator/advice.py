"""Which mode is worth it, found by simulating the candidates rather than by a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from common.figures import Figures
from simulator.experiment import Outcome, run_experiment
from simulator.files import Experiment
from simulator.schemes import FORERUN, SERVER_STREAMING, SYNC_BEST
from simulator.world import World

MODES = (SERVER_STREAMING, SYNC_BEST, FORERUN)
WORTH_IT = 1.05  # times faster than streaming; less is not worth a device's battery
LONGEST_RTT = 2.0  # seconds; beyond it nobody waits for a text
HALVINGS = 5  # of the interval in which the break-even lies: to 3 % of it

MAP_RTTS = (0.0, 0.02, 0.04, 0.08, 0.16, 0.32)  # seconds
MAP_MEANS = (0.5, 0.6, 0.7, 0.8, 0.9)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Advice:
    """What was found. Speed-ups are over server streaming: how many times fewer ms per token."""

    figures: dict[str, Figures]  # by mode, at the RTT asked about
    best: str
    break_even_rtt: float | None  # seconds; Forerun is worth it below; None: nowhere
    is_beyond: bool  # it is worth it even at `LONGEST_RTT`
    speedup_map: dict[float, dict[float, float]]  # RTT in seconds -> acceptance -> Forerun's speed-up

    def speedup(self, mode: str) -> float:
        return self.figures[SERVER_STREAMING].ms_per_token / self.figures[mode].ms_per_token


def advise(
    world: World, repeats: int = 3, workers: int = 0, progress: Progress = lambda text: None
) -> Advice:
    """Try the modes in `world`, then Forerun over other round trips and acceptances. Seconds of computing."""
    progress("trying the modes")
    outcomes = _run(world, MODES, repeats, workers)
    figures = {outcome.scheme: outcome.figures for outcome in outcomes}
    best = min(figures, key=lambda mode: figures[mode].ms_per_token)
    progress("looking for the round trip at which drafting stops to pay")
    break_even, is_beyond = _break_even(world, repeats, workers)
    speedups: dict[float, dict[float, float]] = {}
    for rtt in MAP_RTTS:
        progress(f"drawing the map: {rtt * 1e3:g} ms")
        speedups[rtt] = {
            mean: _speedup(replace(_at(world, rtt), draft=replace(world.draft, mean=mean)), repeats, workers)
            for mean in MAP_MEANS
        }
    return Advice(figures, best, break_even, is_beyond, speedups)


def in_words(world: World, advice: Advice) -> list[str]:
    """Sentences for a person who has to decide."""
    ours, alone = advice.figures[FORERUN], advice.figures[SERVER_STREAMING]
    rtt = world.link.rtt * 1e3
    gain = advice.speedup(FORERUN)
    if gain >= WORTH_IT:
        first = (
            f"Draft on the device: at {rtt:g} ms Forerun writes {gain:.2f} times as fast as server "
            f"streaming, {ours.ms_per_token:.1f} in place of {alone.ms_per_token:.1f} ms per token."
        )
    else:
        first = (
            f"Let the server stream: at {rtt:g} ms drafting ahead gains {100 * (gain - 1):.0f} %, which is "
            "not worth the device's work."
        )
    cost = (
        f"A token then costs the server {ours.target_steps_per_token:.2f} steps and "
        f"{ours.evaluated_nodes_per_token:.1f} rows in place of 1 and 1, and the device "
        f"{ours.draft_evaluations_per_token:.0f} rows of its draft."
    )
    sync = advice.speedup(SYNC_BEST)
    than_streaming = "faster" if sync > 1 else "slower"
    classic = f"The best synchronous block is {than_streaming} than streaming: {sync:.2f} times as fast."
    return [first, cost, classic, _where_it_ends(advice)]


def map_lines(speedups: dict[float, dict[float, float]]) -> list[str]:
    """Forerun's speed-up over streaming by round trip (down) and acceptance (across)."""
    means = list(next(iter(speedups.values())))
    lines = ["  RTT ms │ acceptance " + "".join(f"{mean:>7.2f}" for mean in means)]
    for rtt, row in speedups.items():
        lines.append(f"{rtt * 1e3:>8.0f} │            " + "".join(f"{row[mean]:>6.2f}x" for mean in means))
    return lines


def _where_it_ends(advice: Advice) -> str:
    if advice.is_beyond:
        return f"Drafting pays at every round trip up to {LONGEST_RTT:g} s."
    if advice.break_even_rtt is None:
        return "Drafting does not pay at any round trip with this draft and target."
    return (
        f"Drafting pays (by {100 * (WORTH_IT - 1):.0f} % or more) up to a round trip of about "
        f"{advice.break_even_rtt * 1e3:.0f} ms."
    )


def _break_even(world: World, repeats: int, workers: int) -> tuple[float | None, bool]:
    """By bisection: the speed-up falls as the round trip grows."""
    if _speedup(_at(world, 0.0), repeats, workers) < WORTH_IT:
        return None, False
    if _speedup(_at(world, LONGEST_RTT), repeats, workers) >= WORTH_IT:
        return None, True
    low, high = 0.0, LONGEST_RTT
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if _speedup(_at(world, middle), repeats, workers) >= WORTH_IT:
            low = middle
        else:
            high = middle
    return low, False


def _speedup(world: World, repeats: int, workers: int) -> float:
    alone, ours = _run(world, (SERVER_STREAMING, FORERUN), repeats, workers)
    return alone.figures.ms_per_token / ours.figures.ms_per_token


def _at(world: World, rtt: float) -> World:
    return replace(world, link=replace(world.link, rtt=rtt))


def _run(world: World, schemes: Sequence[str], repeats: int, workers: int) -> list[Outcome]:
    return run_experiment(Experiment(world, repeats, tuple(schemes)), workers)
