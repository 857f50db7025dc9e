"""Texts of a real engine behind a real service on loopback, read by a session that drafts nothing itself."""

from collections.abc import Sequence

from cloud_verifier.core.engine_protocol import TargetEngine
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.messages import TokenLogprobs
from common.sampling import SamplingParams
from edge_client.core.effects import SessionConfig
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from schemes.policies.tree import TreePolicy


async def written(
    engine: TargetEngine,
    table: tuple[bytes | None, ...],
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    guesses: bool,
) -> tuple[list[int], int]:
    """The text after `prompt`, and the rows it took; with `guesses`, what it repeats of itself is drafted."""
    config = SchedulerConfig(recall=guesses, prefix_cache=False)
    worker = Worker(engine, VerifyScheduler(engine.info, config))
    async with Server(worker, engine.info, table, "127.0.0.1:0") as server:
        text = await text_from(f"127.0.0.1:{server.port}", prompt, sampling, engine.info.fingerprint)
    return text, worker.scheduler.counters.num_evaluated


async def told(
    engine: TargetEngine,
    table: tuple[bytes | None, ...],
    prompt: Sequence[int],
    sampling: SamplingParams,
    logprobs: int,
) -> tuple[Generation, list[TokenLogprobs]]:
    """A generation with guesses on both sides, and what it was told of its tokens."""
    worker = Worker(engine, VerifyScheduler(engine.info, SchedulerConfig(recall=True)))
    config = SessionConfig(
        tuple(prompt), sampling, engine.info.fingerprint, patience=None, recall=True, logprobs=logprobs
    )
    emitted = list[TokenLogprobs]()
    async with (
        Server(worker, engine.info, table, "127.0.0.1:0") as server,
        VerifierChannel(f"127.0.0.1:{server.port}") as channel,
    ):
        run = Generation(EdgeSession(config, TreePolicy()), channel, None)
        async for text in run:
            emitted += text.logprobs
    return run, emitted


async def text_from(
    address: str, prompt: Sequence[int], sampling: SamplingParams, fingerprint: bytes
) -> list[int]:
    """What the verifier at `address` writes after `prompt`."""
    config = SessionConfig(tuple(prompt), sampling, fingerprint, patience=None)
    async with VerifierChannel(address) as channel:
        run = Generation(EdgeSession(config, TreePolicy()), channel, None)
        async for _ in run:
            pass
    return list(run.session.text)
