"""The records: each is JSON that `record` writes and `compare` computes again."""

import argparse
import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from cloud_verifier.core import effects as server_effects
from cloud_verifier.core.effects import Reply
from cloud_verifier.core.engine_protocol import StepPlan, TargetEngine
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from common.errors import ForerunError
from common.messages import ClientMessage, Open, ServerMessage
from common.sampling import SamplingParams
from common.wire.codec import encode_request, encode_response
from edge_client.core import effects as edge_effects
from edge_client.core.effects import ModeStatus
from forerun.cli import build_parser
from lab.demo_models import TARGET_DIR
from lab.tools.generate import known_metrics
from simulator.files import read_experiment
from simulator.schemes import SEARCHED, run_scheme
from tests.golden.streams import responses
from tests.support.played import played
from tests.worlds.seeds import spec_of
from tests.worlds.world import World, WorldSpec
from training.prompts import bundled

DIGITS = 9
"""Of numbers that are no whole ones: the last ones differ between processors."""


def plain(value: Any) -> Any:
    """JSON of a value: of a message its bytes, of an error its code, of a standing its mode alone. Raises
    `TypeError` for what it does not know."""
    match value:
        case None | bool() | int() | str():
            result: Any = value
        case float():
            result = f"{value:.{DIGITS}g}"
        case Enum():
            result = value.value
        case bytes():
            result = value.hex()
        case ForerunError():
            result = value.code.name
        case ModeStatus():
            result = value.mode.value
        case np.ndarray() | np.generic():
            result = plain(value.tolist())
        case list() | tuple():
            result = [plain(each) for each in value]
        case Mapping():
            result = [[plain(key), plain(each)] for key, each in value.items()]
        case _ if isinstance(value, ClientMessage):
            result = encode_request(value).SerializeToString(deterministic=True).hex()
        case _ if isinstance(value, ServerMessage):
            result = encode_response(value).SerializeToString(deterministic=True).hex()
        case _ if is_dataclass(value):
            result = [plain(getattr(value, each.name)) for each in fields(value)]
        case _:
            raise TypeError(f"golden records know no {type(value).__name__}")
    return result


def digest(value: Any) -> str:
    """Of what `plain` makes of it."""
    return hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest()[:16]


NUM_WORLDS, NUM_WIRES = 2000, 200
ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "simulator" / "worlds"
NUM_SLOTS = 4096
LENGTH = 400  # tokens of a text


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


def wire_of(seed: int) -> str:
    """Of the bytes alone that both machines send in the world of a seed, in order."""
    world = Noted(spec_of(seed))
    world.run()
    return digest(
        [
            (who, effect.message)
            for _, who, effect, *_ in world.noted
            if isinstance(effect, edge_effects.Send | Reply)
        ]
    )


def wire(seeds: Iterable[int] = range(NUM_WIRES)) -> list[str]:
    with ProcessPoolExecutor() as pool:
        return list(pool.map(wire_of, seeds, chunksize=20))


def worlds(seeds: Iterable[int] = range(NUM_WORLDS)) -> list[str]:
    with ProcessPoolExecutor() as pool:
        return list(pool.map(world_of, seeds, chunksize=20))


def simulated() -> dict[str, dict[str, str]]:
    """Of the shipped worlds with their first seeds: tokens, arrivals and bytes of every session."""
    digests = {}
    for path in sorted(SHIPPED.glob("*.toml")):
        experiment = read_experiment(path)
        schemes = [scheme for scheme in experiment.schemes if scheme not in SEARCHED]
        digests[path.stem] = {
            scheme: digest(
                [
                    (each.tokens, each.arrivals, each.bytes_up, each.bytes_down)
                    for each in run_scheme(scheme, experiment.world)
                ]
            )
            for scheme in schemes
        }
    return digests


def commands() -> dict[str, Any]:
    """Every command's options and arguments: default, choices, and how many values."""
    return _command(build_parser())


def _command(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """By name; a command below it has a table of its own."""
    options: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            options |= {name: _command(below) for name, below in action.choices.items()}
        elif action.dest != "help":
            name = " ".join(action.option_strings) or f"<{action.dest}>"
            default = repr(action.default).replace(str(ROOT), "") if _is_told(action.default) else "its own"
            choices = "" if action.choices is None else f" of {sorted(map(str, action.choices))}"
            options[name] = f"{default}{choices}, {'one' if action.nargs is None else action.nargs}"
    return options


def _is_told(default: object) -> bool:
    """Whether a default is a value that a person gives; others have names of the code."""
    return default is None or isinstance(default, bool | int | float | str | list | tuple)


def metrics() -> list[str]:
    return sorted(known_metrics())


def written(engine: TargetEngine, prompt: tuple[int, ...]) -> list[int]:
    """The prompt and what the target writes after it, greedily."""
    scheduler = VerifyScheduler(engine.info, SchedulerConfig(recall=False, prefix_cache=False))
    sampling = SamplingParams(max_tokens=LENGTH, ignore_eos=True, temperature=0.0)
    scheduler.on_open(1, Open(prompt, sampling, engine.info.fingerprint), 0.0)
    return [*prompt, *played(scheduler, engine)[1]]


def texts() -> dict[str, str]:
    """What the demo pair's target writes after the bundled prompts."""
    from cloud_verifier.engine.torch_loading import load_engine  # here: it imports torch

    engine, _ = load_engine(str(TARGET_DIR), NUM_SLOTS)
    return {
        str(number): digest(written(engine, tuple(engine.model.tokenize(prompt))))
        for number, prompt in enumerate(bundled())
    }


def streams() -> dict[str, str]:
    """Of what each endpoint answers to each scripted question, without drawn names and times."""
    return {name: digest(lines) for name, lines in asyncio.run(responses()).items()}


RECORDS: dict[str, Callable[[], Any]] = {
    "worlds": worlds,
    "wire": wire,
    "streams": streams,
    "simulated": simulated,
    "commands": commands,
    "metrics": metrics,
    "texts": texts,
}


def differences(recorded: Any, actual: Any, where: str = "") -> list[str]:
    """Where two records are not the same."""
    if recorded == actual:
        return []
    if isinstance(recorded, list) and isinstance(actual, list) and len(recorded) == len(actual):
        recorded, actual = dict(enumerate(recorded)), dict(enumerate(actual))
    if not isinstance(recorded, dict) or not isinstance(actual, dict):
        return [f"{where}: {recorded!r} was recorded, {actual!r} was found"]
    return [
        line
        for key in recorded | actual
        for line in differences(recorded.get(key, "nothing"), actual.get(key, "nothing"), f"{where}/{key}")
    ]
