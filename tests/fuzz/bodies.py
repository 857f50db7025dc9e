"""Plays request bodies that are wrong somewhere, for every endpoint; `test_bodies` says how many.

Each body is a good one with some of its values replaced, doubled or left out, at any depth. Whatever comes,
the daemon answers in time, with a text or with an error that has the endpoint's shape, and never with 500.
"""

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx

from edge_client.texts.text_service import TextSettings
from lab.tools.bodies import GOOD, MESSAGES_PATH
from tests.edge_client.api.world import Filling, World, world

PATIENCE = 60.0
"""Seconds within which each request must be answered, also on a busy machine."""

AT_ONCE = 8

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 17, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, 1.0, -0.0, 1e308),
    *("", "a", "abc", "auto", "none", "required", "text", "function", "\x00", "\ufdd0", "é🙂", "x" * 3000),
    *([], [[]], [None], ["a"], [1], {}, {"a": None}, {"type": "text"}, {"type": "function"}, {"text": "a"}),
    *([{}] * 3, ["a"] * 2000, {"type": ["string"]}, {"name": "f"}, {"$ref": "#"}, {"type": "image_url"}),
]
"""Values that a field may get instead of its own."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a JSON value, with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def draw(seed: int) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of this seed."""
    random = Random(seed)
    path = random.choice(list(GOOD))
    body = copy.deepcopy(random.choice(GOOD[path]))
    for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
        spots = list(places(body))
        if not spots:
            break
        holder, key = random.choice(spots)
        match random.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 2:
                holder[key] = {"a": holder[key]} if random.random() < 0.5 else [holder[key]]
            case 3:
                other, name = random.choice(spots)
                holder[key] = copy.deepcopy(other[name]) if name in _keys(other) else None
            case _:
                holder[key] = copy.deepcopy(random.choice(ODD))
    return path, body


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def check(path: str, body: dict[str, Any], answer: httpx.Response) -> str:
    """Return a word for an answer. Raises `AssertionError` for one that no client may get."""
    said = f"{answer.status_code} to {json.dumps(body)[:2000]}: {answer.text[:500]}"
    assert answer.status_code in (200, 400, 404, 413, 429), said
    if answer.status_code != 200:
        told = answer.json()
        assert ("type" in told) == path.startswith(MESSAGES_PATH), said
        words = told["error"] if isinstance(told["error"], str) else told["error"]["message"]
        assert words, said
        assert "defect" not in words, said
    else:
        assert "a defect of this daemon" not in answer.text, said
    return f"{path} {answer.status_code}"


async def play(first: int, count: int, daemon: World) -> Counter[str]:
    """Send the bodies of these seeds, some at once. Return how many got which answer."""
    tally, seeds = Counter[str](), iter(range(first, first + count))

    async def client() -> None:
        for seed in seeds:
            path, body = draw(seed)
            try:
                async with asyncio.timeout(PATIENCE):
                    answer = await daemon.client.post(path, content=json.dumps(body).encode())
                tally[check(path, body, answer)] += 1
            except TimeoutError as error:
                raise AssertionError(f"seed {seed}: {path} was not answered: {body}") from error
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {path} {error}") from error

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(client())
    return tally


async def run(first: int, count: int) -> Counter[str]:
    """Play so many seeds against one daemon, which must have nothing left to do afterwards."""
    async with world(settings=TextSettings(max_waiting=10_000), endpoints=Filling) as daemon:
        return await play(first, count, daemon)
