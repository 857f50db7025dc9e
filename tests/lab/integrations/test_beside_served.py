"""Real edges over gRPC, and an engine behind the service that decides its own steps: texts stay the same."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.settings import ServerSection
from common.acceptance import make_acceptance
from common.errors import UnavailableError, UserError
from common.messages import FinishReason
from common.sampling import SamplingParams
from edge_client.core.effects import SessionConfig
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation
from forerun_beside.http import connect
from forerun_beside.mailbox import Sender
from forerun_beside.scheduler import RequestScheduler
from forerun_beside.serve import BesideConfig, EngineSection, limits_of, read_target, serve
from forerun_beside.worker import RequestWorker
from forerun_sglang.client import SglangClient
from forerun_vllm.client import VllmClient
from tests import wording
from tests.lab.integrations.engine import Choose, Engine, greedy, serving
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import EOS, TABLE, VOCABULARY, generation
from tests.support.waiting import until
from tests.worlds.models import VOCAB, TinyDrafter, target_alone, tiny_logits

pytestmark = pytest.mark.grpc

INFO = TargetInfo("tiny", VOCAB, 512, 4096, EOS, VOCABULARY.fingerprint)
PROMPT = (1, 2, 3)
LONG = SamplingParams(max_tokens=120, ignore_eos=True)
CLIENTS: dict[str, type[SglangClient | VllmClient]] = {"sglang": SglangClient, "vllm": VllmClient}


@contextlib.asynccontextmanager
async def beside(
    folder: Path, kind: str, choose: Choose = greedy
) -> AsyncIterator[tuple[Engine, str, RequestWorker]]:
    """A service beside an engine of this kind: engine, address, worker."""
    async with serving(folder, choose, chains=kind == "vllm") as (engine, url, path), connect(url) as http:
        client, sender = CLIENTS[kind](http), Sender(path)
        scheduler = RequestScheduler(INFO, limits_of(8, client.rules), client.refuse)
        worker = RequestWorker(client, scheduler, sender)
        async with Server(worker, INFO, TABLE, "127.0.0.1:0") as server:
            yield engine, f"127.0.0.1:{server.port}", worker
            await worker.wait_until_gone()
        scheduler.check_integrity()
        assert scheduler.idle
        sender.close()


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("policy", ["tree", "chain", "sync:4", "off"])
async def test_the_text_is_the_targets(tmp_path: Path, kind: str, policy: str) -> None:
    async with beside(tmp_path, kind) as (engine, address, _):
        engine.waits = policy != "off"
        with DrafterThread(TinyDrafter(blend=0.2)) as drafts:
            async with VerifierChannel(address) as channel:
                run = generation(channel, drafts, LONG, make_policy(policy))
                tokens = [token async for emit in run for token in emit.tokens]
    assert tuple(tokens) == target_alone(PROMPT, LONG, EOS)
    assert run.reason is FinishReason.LENGTH
    if policy != "off":
        assert engine.num_steps < engine.num_tokens, "no draft reached the engine"
        assert run.session.stats.accepted


@pytest.mark.parametrize("kind", CLIENTS)
async def test_an_end_token_ends_the_text_and_the_request(tmp_path: Path, kind: str) -> None:
    sampling = SamplingParams(max_tokens=400, stop_token_ids=(4,))
    async with beside(tmp_path, kind) as (engine, address, _), VerifierChannel(address) as channel:
        run = generation(channel, None, sampling)
        tokens = [token async for emit in run for token in emit.tokens]
        await until(lambda: engine.num_aborted)  # the engine notices at its next step
    assert tuple(tokens) == target_alone(PROMPT, sampling, EOS)
    assert run.reason is FinishReason.STOP


@pytest.mark.torch
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=80, ignore_eos=True, temperature=0.9, seed=2**64 - 1, top_k=5, top_p=0.9),
        SamplingParams(max_tokens=80, ignore_eos=True, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(
            max_tokens=80, ignore_eos=True, temperature=1.0, seed=3, logit_bias=((4, -2.0), (5, 1.0))
        ),
    ],
)
async def test_sglang_samples_as_the_target_under_the_shared_noise(
    tmp_path: Path, sampling: SamplingParams
) -> None:
    import numpy as np
    import torch

    from forerun_sglang.rows import PARAMETER, Text, choose_in, read

    def chosen(text: list[int], paths: list[list[int]], request: dict[str, Any]) -> list[int]:
        """As the plug-in does: choices into the logits, of which the engine takes the best."""
        found = read(request["sampling_params"]["custom_params"][PARAMETER])
        assert found is not None
        logits = torch.tensor(np.array([tiny_logits(1, [*text, *path]) for path in paths]))
        for row, path in enumerate(paths):
            choose_in(logits[row : row + 1], [Text((text, path), *found)], None)
        return logits.argmax(dim=1).tolist()

    async with beside(tmp_path, "sglang", chosen) as (engine, address, _):
        engine.waits = True
        with DrafterThread(TinyDrafter(blend=0.2)) as drafts:
            async with VerifierChannel(address) as channel:
                run = generation(channel, drafts, sampling)
                tokens = [token async for emit in run for token in emit.tokens]
    assert tuple(tokens) == target_alone(PROMPT, sampling, EOS)
    assert engine.num_steps < engine.num_tokens


async def test_an_engine_that_is_gone_ends_no_text_and_is_told_as_unavailable(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url, path):
        pass
    async with connect(url) as http:
        client, sender = SglangClient(http), Sender(path)
        scheduler = RequestScheduler(INFO, limits_of(8, client.rules), client.refuse)
        async with (
            Server(RequestWorker(client, scheduler, sender), INFO, TABLE, "127.0.0.1:0") as server,
            VerifierChannel(f"127.0.0.1:{server.port}") as channel,
        ):
            run = generation(channel, None, LONG, max_attempts=2)
            with pytest.raises(UnavailableError):
                [emit async for emit in run]
        sender.close()
    assert run.session.stats.resumes


async def test_vllm_serves_sampled_texts_by_rejection_alone(tmp_path: Path) -> None:
    sampled = SamplingParams(max_tokens=8, temperature=1.0, ignore_eos=True, seed=5)
    async with beside(tmp_path, "vllm") as (engine, address, _), VerifierChannel(address) as channel:
        for refused in (sampled, SamplingParams(max_tokens=8, presence_penalty=1.0)):
            with wording.raises(UserError):
                [emit async for emit in generation(channel, None, refused)]
        run = generation(channel, None, sampled, acceptance=make_acceptance("rejection"))
        assert [emit async for emit in run]
    (asked,) = engine.requests
    assert asked["sampling_params"]["temperature"] == 1.0


@pytest.mark.torch
def test_what_others_write_into_custom_params_is_nothing() -> None:
    from forerun_sglang.rows import read

    for text in (
        "",
        "{}",
        "[1]",
        '{"prompt_length": 1, "sampling": {}}',
        '{"prompt_length": 1, "sampling": 3}',
        None,
    ):
        assert read(text) is None
    wrong = '{"prompt_length": 1, "sampling": {"temperature": -1, "logit_bias": [], "stop_token_ids": []}}'
    assert read(wrong) is None


@pytest.mark.torch
async def test_the_command_serves_until_a_signal_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as (_, url, path):
        monkeypatch.setenv("FORERUN_MAILBOX", path)
        engine = EngineSection(url=url, model="lab/demo_models/target", name="theirs")
        config = BesideConfig(engine, ServerSection(listen="127.0.0.1:0", grace=0.0))
        service = asyncio.create_task(serve(config, SglangClient))
        said = ""
        while not said and not service.done():
            await asyncio.sleep(0.01)
            said = capsys.readouterr().out
        info, _ = read_target(engine.model, 64)
        session = SessionConfig(PROMPT, LONG, info.fingerprint, patience=None)
        async with VerifierChannel(json.loads(said)["listening"]) as channel:
            run = Generation(EdgeSession(session, make_policy("off")), channel, None)
            tokens = [token async for emit in run for token in emit.tokens]
        os.kill(os.getpid(), signal.SIGTERM)
        await service
    assert json.loads(said)["model"] == "theirs"
    assert tuple(tokens) == target_alone(PROMPT, LONG, ())
