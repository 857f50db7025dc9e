"""What an edge that never reads costs a verifier: resident bytes, beside edges that read or wait.

Run `python -m benchmarks.deaf_peers --json`. Each kind of peer meets a fresh verifier process, every peer on
a connection of its own:

* `waiting`: open sessions for which nothing is written (no fill, no proposal). What any session costs.
* `reading`: edges that take their whole text at once.
* `deaf`: edges that open a session and never take a byte, their windows as small as HTTP/2 lets them be.

The verifier is the real service, worker and scheduler; its target repeats one token and has no weights
and no KV, so that what grows is sessions, messages and connections. `of_reading` is what a peer costs
beyond one of those that read (their most, while they read); `of_waiting`, beyond one for which nothing is
written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.target import RowLogprobs, StepItem, StepPlan, StepResult, TargetInfo
from cloud_verifier.engine.floor import FlooredEngine
from cloud_verifier.server import Server
from cloud_verifier.worker import Worker
from common.messages import Open
from common.pb import verifier_pb2_grpc as pb_grpc
from common.privacy import Privacy
from common.rpc.codec import encode_request
from common.sampling import SamplingParams
from forerun.bench.meter import memory_bytes
from forerun.rig import START_TIMEOUT, Child

VOCAB, POSITIONS = 32_000, 16_384
TOKEN = 31_000  # Python keeps small numbers once for all; few ids are small
FINGERPRINT = b"repeats"
KINDS = ("waiting", "reading", "deaf")
WARM_PEERS = 4
"""That come and go before anything is measured: the first of all pays for what all share."""

STEP_TIME = 0.02
"""Seconds: a target that took none would leave its own event loop no time for new streams."""

STILL = 1.0
"""Seconds without a new token after which nobody is written for any more."""

WINDOW = 1024
"""Bytes that may be on their way to a deaf peer."""


class OneToken:
    """A target that always writes the same token, and tells the same of it."""

    def __init__(self, info: TargetInfo) -> None:
        self.info = info

    def evaluate(self, plan: StepPlan) -> StepResult:
        """See `TargetEngine.evaluate`."""
        num_rows = [len(item.outputs) for item in plan.items]
        choices = tuple(np.full(rows, TOKEN, np.int32) for rows in num_rows)
        margins = tuple(np.ones(rows, np.float32) for rows in num_rows)
        told = tuple(_logprobs(item) for item in plan.items)
        return StepResult(choices, margins, told if any(each is not None for each in told) else ())


def _logprobs(item: StepItem) -> RowLogprobs | None:
    if item.logprobs is None:
        return None
    rows, top = len(item.outputs), item.logprobs
    tokens = np.tile(TOKEN + np.arange(top, dtype=np.int32), (rows, 1))
    values = np.tile(-np.arange(top, dtype=np.float32), (rows, 1))
    return RowLogprobs(np.zeros(rows, np.float32), tokens, values)


async def serve(peers: int) -> None:
    """A verifier in this process. For each line of standard input it says how things stand."""
    info = TargetInfo("repeats", VOCAB, POSITIONS, (peers + WARM_PEERS) * POSITIONS, (0,), FINGERPRINT)
    config = SchedulerConfig(
        max_sessions=peers + WARM_PEERS, prefix_cache=False, stall_timeout=3600.0, idle_timeout=3600.0
    )
    scheduler = VerifyScheduler(info, config)
    worker = Worker(FlooredEngine(OneToken(info), STEP_TIME), scheduler)
    async with Server(worker, info, (b"x",) * VOCAB, "127.0.0.1:0") as server:
        print(json.dumps({"listening": f"127.0.0.1:{server.port}"}), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            sessions = scheduler.sessions.values()
            standing = {
                "resident": memory_bytes(),
                "sessions": len(sessions),
                "stalled": sum(each.stalled_at is not None for each in sessions),
                "written": scheduler.counters.num_committed,
            }
            print(json.dumps(standing), flush=True)


class Peers:
    """Edges by hand, each on its own connection."""

    def __init__(self, address: str, request: Open, window: int = 0) -> None:
        self._address, self._request, self._window = address, request, window
        self.calls: list[Any] = []

    @contextlib.asynccontextmanager
    async def here(self, number: int) -> AsyncIterator[Sequence[Any]]:
        """So many open sessions, as long as the block lasts."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self._window:
            options += [("grpc.http2.lookahead_bytes", self._window), ("grpc.http2.bdp_probe", 0)]
        async with contextlib.AsyncExitStack() as stack:
            calls = list[Any]()
            for _ in range(number):
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(self._address, options))
                call = pb_grpc.VerifierServiceStub(channel).Session()
                await call.write(encode_request(self._request))
                calls.append(call)
            yield calls
            for call in calls:
                call.cancel()


async def _read(call: Any) -> int:
    num_bytes = 0
    async for message in call:
        num_bytes += message.ByteSize()
    return num_bytes


class Verifier:
    """The process that is measured."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.most = 0  # resident bytes, of all times that it was asked

    async def standing(self) -> dict[str, int]:
        await self._child.write({})
        found: dict[str, int] = await self._child.read(START_TIMEOUT)
        self.most = max(self.most, found["resident"])
        return found

    async def quiet(self) -> dict[str, int]:
        """How things stand when nothing has been written for a while."""
        now, still = await self.standing(), 0.0
        while still < STILL:
            await asyncio.sleep(0.1)
            before, now = now, await self.standing()
            still = 0.0 if now["written"] != before["written"] else still + 0.1
        return now

    async def until_empty(self) -> None:
        while (await self.standing())["sessions"]:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.05)


async def measure(kind: str, number: int, tokens: int, logprobs: int | None) -> dict[str, Any]:
    """One kind of peer, in bytes a peer."""
    child = await Child.start("verifier", "--serve", str(number), module="benchmarks.deaf_peers")
    try:
        address = (await child.read(START_TIMEOUT))["listening"]
        verifier = Verifier(child)
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        request = Open(
            (1, 2, 3),
            sampling,
            FINGERPRINT,
            fill=kind != "waiting",
            logprobs=logprobs,
            privacy=Privacy.PADDED,
        )
        peers = Peers(address, request, WINDOW if kind == "deaf" else 0)
        async with peers.here(WARM_PEERS) as calls:
            await asyncio.gather(*map(_read, calls)) if kind == "reading" else await verifier.quiet()
        await verifier.until_empty()
        before = (await verifier.standing())["resident"]
        verifier.most = 0
        async with peers.here(number) as calls:
            readers = [asyncio.create_task(_read(call)) for call in calls] if kind == "reading" else []
            after = await verifier.quiet()
            read = await asyncio.gather(*readers)
        most = verifier.most
    finally:
        await child.stop()
    return {
        "bytes": round((most - before) / number),
        "sessions": after["sessions"],
        "stalled": after["stalled"],
        "tokens_written": round(after["written"] / number),
        **({"bytes_read": round(sum(read) / number)} if read else {}),
    }


async def compare(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in KINDS:
        found[kind] = await measure(kind, options.peers, options.tokens, options.logprobs)
        print(f"{kind}: {found[kind]}", file=sys.stderr, flush=True)
    deaf = found["deaf"]["bytes"]
    return {
        "peers": options.peers,
        "tokens": options.tokens,
        "logprobs": options.logprobs,
        **found,
        "of_waiting": deaf - found["waiting"]["bytes"],
        "of_reading": deaf - found["reading"]["bytes"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.deaf_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--peers", type=int, default=100, metavar="N", help="of each kind (%(default)s)")
    option("--tokens", type=int, default=2000, metavar="N", help="that each asks for (%(default)s)")
    option("--logprobs", type=int, metavar="N", help="that each asks for beside every token (none)")
    option("--json", action="store_true", help="on one line")
    option("--serve", type=int, metavar="PEERS", help="be the verifier; what this program starts itself")
    options = parser.parse_args(arguments)
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return 0
    report = asyncio.run(compare(options))
    sys.stdout.write(json.dumps(report, indent=None if options.json else 1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
