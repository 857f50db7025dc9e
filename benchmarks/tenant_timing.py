"""Does the time that a verifier takes tell one tenant what another has asked?

    python -m benchmarks.tenant_timing --json > tenant_timing.json

In each trial tenant `a` sends a prompt, and then tenant `b` one that nobody of its own has sent: by lot the
same or another of the same length. The times to `b`'s first token should be of one law either way, which the
test of Kolmogorov and Smirnov judges. Then `b` sends its prompt again, which its cache knows: the control, in
which the same test must see a difference, or it could see none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import grpc.aio

from benchmarks.kolmogorov import chance, distance
from common.errors import ForerunError, PeerError
from common.messages import Open
from common.pb import verifier_pb2 as pb
from common.pb import verifier_pb2_grpc as pb_grpc
from common.rpc.codec import encode_request
from common.sampling import SamplingParams
from forerun.rig import START_TIMEOUT, Child

TENANT = "x-tenant"
TARGET = Path("demo_models/target")
TOKENS = 2
"""Of every text: the first is what counts."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured; times to the first token in milliseconds, medians."""

    trials: int
    prompt_tokens: int
    ms_sent_by_another: float
    ms_sent_by_nobody: float
    distance: float  # of Kolmogorov and Smirnov, between those two
    p: float
    ms_sent_before: float  # by the tenant itself: the control
    control_distance: float
    control_p: float


class Asker:
    """Sends prompts to a verifier without drafts, for whichever tenant."""

    def __init__(self, channel: grpc.aio.Channel, fingerprint: bytes) -> None:
        self._stub = pb_grpc.VerifierServiceStub(channel)
        self._fingerprint = fingerprint

    async def first_token(self, tenant: str, prompt: Sequence[int]) -> float:
        """Seconds until the first token comes; the text is read on to its end. Raises `PeerError` if none
        does."""
        sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        request = encode_request(Open(tuple(prompt), sampling, self._fingerprint))
        call = self._stub.Session(metadata=((TENANT, tenant),))
        began, came = time.perf_counter(), None
        await call.write(request)
        async for response in call:
            kind = response.WhichOneof("message")
            if kind == "commit" and came is None:
                came = time.perf_counter()
            if kind == "finish":
                break
        call.cancel()
        if came is None:
            raise PeerError("the verifier ended a text without a token")
        return came - began


async def measure(address: str, trials: int, length: int, seed: int) -> Found:
    """All trials against the verifier at `address`."""
    async with grpc.aio.insecure_channel(address) as channel:
        described = await pb_grpc.VerifierServiceStub(channel).Describe(pb.DescribeRequest())
        asker = Asker(channel, described.fingerprint)
        lots = random.Random(seed)

        def prompt() -> list[int]:
            return [lots.randrange(described.vocab_size) for _ in range(length)]

        for _ in range(5):  # the first steps of a process are slower
            await asker.first_token("a", prompt())
        sent = [True, False] * (trials // 2)
        lots.shuffle(sent)
        times: dict[bool, list[float]] = {True: [], False: []}
        again = list[float]()
        for known in sent:
            mine = prompt()
            await asker.first_token("a", mine if known else prompt())
            times[known].append(await asker.first_token("b", mine))
            again.append(await asker.first_token("b", mine))
    return _judge(times[True], times[False], again, length)


def _judge(known: list[float], unknown: list[float], again: list[float], length: int) -> Found:
    return Found(
        trials=len(known) + len(unknown),
        prompt_tokens=length,
        ms_sent_by_another=round(median(known) * 1e3, 3),
        ms_sent_by_nobody=round(median(unknown) * 1e3, 3),
        distance=round(distance(known, unknown), 4),
        p=round(chance(known, unknown), 4),
        ms_sent_before=round(median(again) * 1e3, 3),
        control_distance=round(distance(again, known + unknown), 4),
        control_p=chance(again, known + unknown),
    )


async def run(target: Path, trials: int, length: int, seed: int) -> Found:
    """Start a verifier and measure it."""
    options = (
        "--listen",
        "127.0.0.1:0",
        "--json",
        "--threads",
        "1",
        "--log-level",
        "warning",
        "--grace",
        "0",
    )
    verifier = await Child.start(
        "verifier", "verify", "--model", str(target), *options, "--tenant-header", TENANT
    )
    try:
        address = (await verifier.read(START_TIMEOUT))["listening"]
        return await measure(address, trials, length, seed)
    finally:
        await verifier.stop()


def main() -> int:
    """Prints the figures as sentences, or with --json as an object; 1 if tenants can be told apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", type=Path, default=TARGET, metavar="PATH", help="(%(default)s)")
    parser.add_argument("--trials", type=int, default=200, metavar="N", help="(%(default)s)")
    parser.add_argument("--length", type=int, default=200, metavar="N", help="of a prompt (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of prompts and lots (%(default)s)")
    parser.add_argument("--json", action="store_true", help="an object instead of sentences")
    options = parser.parse_args()
    try:
        found = asyncio.run(run(options.target, options.trials, options.length, options.seed))
    except ForerunError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print(
            f"To the first token after a prompt that another tenant has sent: {found.ms_sent_by_another} ms; "
            f"that nobody has sent: {found.ms_sent_by_nobody} ms (p = {found.p:.2f} over {found.trials} "
            f"trials). That it has sent itself: {found.ms_sent_before} ms (p = {found.control_p:.1e})."
        )
    return 0 if found.p > 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
