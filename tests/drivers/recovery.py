"""How soon a text goes on after its verifier was lost, over real connections; seconds, as one line of JSON.

    python -m tests.drivers.recovery --times 10

`reset`: from the connection's reset to the next committed token. `frozen`: from when a link swallows
everything to when its stream is given up (`found`), and to the next token. `frozen_ping`: the same with
gRPC's keepalive alone. `wrong`: from the start until an address is told to be wrong, where nothing listens
and where nobody answers. `idle_cpu`: share of one processor that an idle pool takes with a verifier that is
there and one that is not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.network.generation import Generation
from edge_client.network.member import Health
from edge_client.network.verifiers import Verifiers
from simulator.proxy import Link, Timeout, both_ways, rtt
from tests.drivers.tiny import generation, running

LONG = SamplingParams(max_tokens=400, ignore_eos=True)
IDLE_TIME = 20.0


@dataclass
class Outcome:
    """Seconds since the fault."""

    found: float
    text: float


@contextlib.asynccontextmanager
async def pool_of(count: int) -> AsyncIterator[tuple[Verifiers, dict[str, Link]]]:
    """So many verifiers of 10 ms a step, each behind 10 ms of round trip, all ready."""
    async with contextlib.AsyncExitStack() as stack:
        links = dict[str, Link]()
        for _ in range(count):
            system = await stack.enter_async_context(running(step_time=0.01))
            link = await stack.enter_async_context(Link.to(system.address, *rtt(10)))
            links[str(link.address)] = link
        pool = await stack.enter_async_context(Verifiers([*links]))
        while any(status.health is not Health.READY for status in pool.snapshot()):  # noqa: ASYNC110 - measured later
            await asyncio.sleep(0.01)
        yield pool, links


async def after(fault: Callable[[Link], None], count: int, asks: bool = True) -> Outcome:
    """What a fault in mid-text costs, of one of `count` verifiers."""
    async with pool_of(count) as (pool, links):
        route = pool.route("measured")
        run = generation(
            route,
            None,
            LONG,
            make_policy("off"),
            max_attempts=None,
            first_backoff=0.1,
            asks_when_silent=asks,
        )
        return await _measured(run, lambda: fault(links[route.address]))


async def _measured(run: Generation, fault: Callable[[], None]) -> Outcome:
    began, watching = 0.0, asyncio.create_task(_lost_at(run))
    async for _ in run:
        if not began and len(run.session.text) >= 60:
            began = time.monotonic()
            fault()
        elif run.session.stats.resumes:
            break
    ended = time.monotonic()
    return Outcome(round(await watching - began, 3), round(ended - began, 3))


async def _lost_at(run: Generation) -> float:
    while not run.session.text or (run.session.view.stream_up and not run.session.stats.resumes):  # noqa: ASYNC110 - this is a measurement
        await asyncio.sleep(0.002)
    return time.monotonic()


def reset(link: Link) -> None:
    link.cut()


def freeze(link: Link) -> None:
    """It swallows everything and resets nothing."""
    for toxic in both_ways(Timeout(0)):
        link.add_toxic(toxic)


async def wrong(address: str) -> float:
    began = time.monotonic()
    async with Verifiers([address]) as pool:
        told = asyncio.Event()
        pool.listen(told.set)
        await told.wait()
        assert pool.snapshot()[0].health is Health.UNREACHABLE
    return round(time.monotonic() - began, 3)


async def idle_cpu() -> float:
    """After the first questions."""
    async with running() as system, Verifiers([system.address, "127.0.0.1:1"]) as pool:
        await pool.heard(10.0)
        await asyncio.sleep(3.0)
        before, began = time.process_time(), time.monotonic()
        await asyncio.sleep(IDLE_TIME)
        return round((time.process_time() - before) / (time.monotonic() - began), 4)


async def measure(times: int) -> dict[str, object]:
    """Each several times."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # connects, and says nothing
        silent = [await wrong(f"127.0.0.1:{deaf.getsockname()[1]}") for _ in range(3)]
    return {
        "wrong_refused": [await wrong("127.0.0.1:1") for _ in range(3)],
        "wrong_silent": silent,
        "reset_1": [(await after(reset, 1)).text for _ in range(times)],
        "reset_2": [(await after(reset, 2)).text for _ in range(times)],
        "frozen_2_found": [(await after(freeze, 2)).found for _ in range(times)],
        "frozen_2_text": [(await after(freeze, 2)).text for _ in range(times)],
        "frozen_ping_found": [(await after(freeze, 2, asks=False)).found for _ in range(min(times, 5))],
        "idle_cpu": await idle_cpu(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures recovery over real connections.")
    parser.add_argument("--times", type=int, default=10, help="how often each (%(default)s)")
    sys.stdout.write(json.dumps(asyncio.run(measure(parser.parse_args().times))) + "\n")


if __name__ == "__main__":
    main()
