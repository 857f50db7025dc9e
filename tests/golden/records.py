"""The records: each is JSON that `record` writes and `compare` computes again."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.clocked_verifier import written
from cloud_verifier.core import effects as server_effects
from cloud_verifier.core.target import StepPlan
from demo_models import TARGET_DIR
from edge_client.core import effects as edge_effects
from forerun.cli import build_parser
from forerun.prompts import bundled
from simulator.files import read_experiment
from simulator.schemes import SEARCHED, run_scheme
from tests.golden.plain import digest
from tests.worlds.seeds import spec_of
from tests.worlds.world import World, WorldSpec
from tools.deploy_rules.observing import known_metrics

NUM_WORLDS = 2000
ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "simulator" / "worlds"
NUM_SLOTS = 4096


class Noted(World):
    """A world that keeps all effects of its machines and all plans of its verifiers, in order."""

    def __init__(self, spec: WorldSpec) -> None:
        super().__init__(spec)
        self.noted: list[Any] = []

    def note_effect(self, who: str, effect: edge_effects.Effect | server_effects.Effect) -> None:
        self.noted.append((self.now, who, effect))

    def note_step(self, plan: StepPlan) -> None:
        for item in plan.items:
            rows = item.tokens, item.positions, item.parents, item.slots, item.outputs
            self.noted.append((self.now, item.session, item.prefix_slots, *rows))


def world_of(seed: int) -> str:
    """Of what both machines do in the world of a seed, and of the bytes that they send."""
    world = Noted(spec_of(seed))
    world.run()
    return digest(world.noted)


def worlds(seeds: Iterable[int] = range(NUM_WORLDS)) -> list[str]:
    with ProcessPoolExecutor() as pool:
        return list(pool.map(world_of, seeds, chunksize=20))


def simulated() -> dict[str, dict[str, str]]:
    """Of the shipped worlds with their first seeds: tokens, arrivals and bytes of every session."""
    found = {}
    for path in sorted(SHIPPED.glob("*.toml")):
        experiment = read_experiment(path)
        schemes = [scheme for scheme in experiment.schemes if scheme not in SEARCHED]
        found[path.stem] = {
            scheme: digest(
                [
                    (each.tokens, each.arrivals, each.bytes_up, each.bytes_down)
                    for each in run_scheme(scheme, experiment.world)
                ]
            )
            for scheme in schemes
        }
    return found


def commands() -> dict[str, Any]:
    """Every command's options and arguments: default, choices, and how many values."""
    return _command(build_parser())


def _command(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """By name; a command below it has a table of its own."""
    found: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name: _command(below) for name, below in action.choices.items()}
        elif action.dest != "help":
            name = " ".join(action.option_strings) or f"<{action.dest}>"
            default = repr(action.default).replace(str(ROOT), "") if _is_told(action.default) else "its own"
            choices = "" if action.choices is None else f" of {sorted(map(str, action.choices))}"
            found[name] = f"{default}{choices}, {'one' if action.nargs is None else action.nargs}"
    return found


def _is_told(default: object) -> bool:
    """Whether a default is a value that a person gives; others have names of the code."""
    return default is None or isinstance(default, bool | int | float | str | list | tuple)


def metrics() -> list[str]:
    return sorted(known_metrics())


def texts() -> dict[str, str]:
    """What the demo pair's target writes after the bundled prompts."""
    from cloud_verifier.engine.loading import load_engine  # here: it imports torch

    engine, _ = load_engine(str(TARGET_DIR), NUM_SLOTS)
    return {
        str(number): digest(written(engine, tuple(engine.model.tokenize(prompt))))
        for number, prompt in enumerate(bundled())
    }


RECORDS: dict[str, Callable[[], Any]] = {
    "worlds": worlds,
    "simulated": simulated,
    "commands": commands,
    "metrics": metrics,
    "texts": texts,
}


def differences(recorded: Any, found: Any, where: str = "") -> list[str]:
    """Where two records are not the same."""
    if recorded == found:
        return []
    if isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        recorded, found = dict(enumerate(recorded)), dict(enumerate(found))
    if not isinstance(recorded, dict) or not isinstance(found, dict):
        return [f"{where}: {recorded!r} was recorded, {found!r} was found"]
    return [
        line
        for key in recorded | found
        for line in differences(recorded.get(key, "nothing"), found.get(key, "nothing"), f"{where}/{key}")
    ]
