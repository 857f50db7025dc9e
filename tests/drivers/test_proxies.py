"""Texts through the proxies of deploy/proxies are the target's, whatever these do to connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cloud_verifier.core.limits import SchedulerConfig
from common.sampling import SamplingParams
from edge_client.api.listening import Listening
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from lab.benchmarks.faults.draws import FaultJob
from lab.benchmarks.faults.run import Client
from tests.conftest import WHERE_PROGRAMS_ARE
from tests.edge_client.api.served import TOKEN, served
from tests.edge_client.api.world import alone, world
from tests.support.drafter_thread import DrafterThread
from tests.support.ports import free_port
from tests.support.tiny import EOS, System, generation, running
from tests.worlds.models import TinyDrafter, target_alone

pytestmark = [pytest.mark.grpc, pytest.mark.proxies]

FILES = Path(__file__).resolve().parents[2] / "deploy" / "proxies"
COMMANDS = {
    "nginx": ("nginx.conf", "-g", "daemon off; worker_shutdown_timeout 100ms;", "-c"),
    "haproxy": ("haproxy.cfg", "-W", "-f"),
    "envoy": ("envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "-l", "warning", "-c"),
}
"""A proxy's file, and its options, the one that takes the file last."""
PROMPT = (1, 2, 3)


class Proxy:
    """Runs a file of deploy/proxies with other ports, and a folder of its own."""

    def __init__(self, name: str, folder: Path, edges: str = ":1", programs: str = ":1") -> None:
        """Args: edges, programs: loopback addresses behind its two ports; at port 1 nobody listens."""
        self.name, self.edge_port, self.api_port = name, free_port(), free_port()
        ports = {"50050": str(self.edge_port), "50051": edges.rpartition(":")[2]}
        ports |= {"8081": str(self.api_port), "8080": programs.rpartition(":")[2]}
        folder.mkdir(exist_ok=True)
        file, *self._options = COMMANDS[name]
        text = (FILES / file).read_text(encoding="utf-8").replace("stop-after 30s", "stop-after 100ms")
        text = re.sub("|".join(ports), lambda port: ports[port[0]], text.replace("/tmp/", f"{folder}/"))
        self._file, self._log = folder / file, folder / f"{name}.log"
        self._file.write_text(text, encoding="utf-8")

    @property
    def edges(self) -> str:
        return f"127.0.0.1:{self.edge_port}"

    @property
    def programs(self) -> str:
        return f"127.0.0.1:{self.api_port}"

    async def __aenter__(self) -> Proxy:
        with self._log.open("ab") as log:
            program = shutil.which(self.name, path=WHERE_PROGRAMS_ARE) or self.name
            self.process = await asyncio.create_subprocess_exec(
                program, *self._options, str(self._file), stderr=log, stdout=log
            )
        for port in (self.edge_port, self.api_port):
            for _ in range(600):
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                assert self.process.returncode is None, self._log.read_text(encoding="utf-8")
                await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.process.terminate()
        await self.process.wait()

    async def end_connections(self) -> None:
        """Start anew, as for a new configuration: the old connections are ended at once or soon."""
        if self.name == "envoy":
            await self.__aexit__()
            await self.__aenter__()
        else:
            self.process.send_signal(signal.SIGHUP if self.name == "nginx" else signal.SIGUSR2)


@pytest.fixture(params=["nginx", "haproxy", pytest.param("envoy", marks=pytest.mark.envoy)])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@contextlib.asynccontextmanager
async def between(name: str, folder: Path, step_time: float) -> AsyncIterator[tuple[System, Proxy]]:
    async with running(step_time=step_time) as system, Proxy(name, folder, edges=system.address) as proxy:
        yield system, proxy


def sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.8, seed=11)


async def test_a_drafted_text_is_the_targets_through_a_proxy(name: str, tmp_path: Path) -> None:
    async with between(name, tmp_path, 0.005) as (_, proxy):
        with DrafterThread(TinyDrafter()) as drafts:
            async with VerifierChannel(proxy.edges) as channel:
                run = generation(channel, drafts, sampling(80), make_policy("adaptive"), PROMPT)
                tokens = [token async for emit in run for token in emit.tokens]
    assert tuple(tokens) == target_alone(PROMPT, sampling(80), EOS)
    assert run.session.stats.proposed > 0


@pytest.mark.slow
@pytest.mark.parametrize("step_time", [7.0, pytest.param(60.0, marks=pytest.mark.soak)])
async def test_a_long_silence_is_waited_for_and_pings_are_no_fault(
    name: str,
    step_time: float,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Two steps: the edge pings after two seconds of silence."""
    with caplog.at_level(logging.DEBUG):
        async with between(name, tmp_path, step_time) as (_, proxy), VerifierChannel(proxy.edges) as channel:
            began, run = time.monotonic(), generation(channel, None, sampling(2), make_policy("off"), PROMPT)
            tokens = [token async for emit in run for token in emit.tokens]
    assert tuple(tokens) == target_alone(PROMPT, sampling(2), EOS)
    assert time.monotonic() - began > step_time
    assert run.session.stats.resumes == 0
    assert "too_many_pings" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.slow
async def test_a_text_goes_on_while_its_connections_are_ended(name: str, tmp_path: Path) -> None:
    async with between(name, tmp_path, 0.02) as (_, proxy), VerifierChannel(proxy.edges) as channel:
        run = generation(channel, None, sampling(200), make_policy("off"), PROMPT, max_attempts=None)
        tokens = list[int]()
        async for emit in run:
            before, tokens = len(tokens) // 50, [*tokens, *emit.tokens]
            if len(tokens) // 50 > before:
                await proxy.end_connections()
    assert tuple(tokens) == target_alone(PROMPT, sampling(200), EOS)
    assert run.session.stats.resumes > 0


@pytest.mark.soak
@pytest.mark.api
async def test_a_text_survives_a_prefill_of_a_minute_over_connections_of_half_a_minute(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A proxy on either side of the daemon, 30 steps of 2 s for the prompt, and a client that resumes."""
    proxies, prompt = list[Proxy](), "abcdef" * 80
    sampled = {"max_tokens": 30, "ignore_eos": True, "temperature": 0.8, "seed": 11}
    body = {"prompt": prompt, "stream": True, "stream_options": {"include_usage": True}, **sampled}

    async def before(address: str) -> str:
        proxies.append(Proxy(name, tmp_path / "back", edges=address))
        await stack.enter_async_context(proxies[0])
        return proxies[0].edges

    async def age() -> None:
        while True:
            await asyncio.sleep(30.0)
            for proxy in proxies:
                await proxy.end_connections()

    async with contextlib.AsyncExitStack() as stack:
        config = SchedulerConfig(prefill_chunk=16)
        it = await stack.enter_async_context(world(config=config, step_time=2.0, through=before))
        api = await stack.enter_async_context(Listening(it.api.app, "127.0.0.1:0"))
        proxies.append(Proxy(name, tmp_path / "front", programs=api.address))
        front = await stack.enter_async_context(proxies[1])
        ageing, client = asyncio.create_task(age()), Client(front.programs, lambda name: None)
        stack.callback(ageing.cancel)
        reading = await client.stream("text", FaultJob(0, "/v1/completions", body))
        assert await client.again("text") == reading.data
    assert reading.told().text == alone(prompt, **sampled)
    assert reading.num_connections > 2
    assert reading.figures["resumes"] > 1
    assert "too_many_pings" not in "".join(capfd.readouterr())


@pytest.mark.api
async def test_events_come_one_by_one_through_a_proxy_before_the_daemon(name: str, tmp_path: Path) -> None:
    body = {
        "model": "default",
        "prompt": "abc",
        "max_tokens": 12,
        "stream": True,
        "ignore_eos": True,
        "seed": 3,
    }
    async with served(step_time=0.05) as it, Proxy(name, tmp_path, programs=it.address) as proxy:
        texts, times = dict[str, str](), list[float]()
        for address in (it.address, proxy.programs):
            async with (
                httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client,
                client.stream("POST", f"http://{address}/v1/completions", json=body) as answer,
            ):
                lines, times = list[str](), list[float]()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        lines.append(json.loads(line[6:])["choices"][0]["text"])
                        times.append(time.monotonic())
            texts[address] = "".join(lines)
    direct, proxied = texts.values()
    assert direct == proxied
    assert len(direct) == 12
    assert len(set(times)) > 3
    assert times[-1] - times[0] > 0.1  # held back, all would come together
