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

from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from tests.conftest import WHERE_PROGRAMS_ARE
from tests.edge_client.api.served import TOKEN, served
from tests.support.drafter_thread import DrafterThread
from tests.support.ports import free_port
from tests.support.tiny import EOS, System, generation, running
from tests.worlds.models import TinyDrafter, target_alone

pytestmark = [pytest.mark.grpc, pytest.mark.proxies]

FILES = Path(__file__).resolve().parents[2] / "deploy" / "proxies"
PROMPT = (1, 2, 3)


class Proxy:
    """Runs a file of deploy/proxies with other ports, and a folder of its own."""

    def __init__(self, name: str, folder: Path, edges: str = "", programs: str = "") -> None:
        """Args: edges, programs: addresses behind its two ports; empty: nobody listens there."""
        self.name, self.edge_port, self.api_port = name, free_port(), free_port()
        text = (FILES / f"{name}.c{'onf' if name == 'nginx' else 'fg'}").read_text(encoding="utf-8")
        ports = {"50050": str(self.edge_port), "8081": str(self.api_port)}
        ports |= {"127.0.0.1:50051": edges or "127.0.0.1:1", "127.0.0.1:8080": programs or "127.0.0.1:1"}
        for before, after in ports.items():
            text = re.sub(rf"(?m)^([^#\n]*){re.escape(before)}\b", rf"\g<1>{after}", text)
        self.path = folder / name
        text = text.replace("/tmp/", f"{folder}/").replace("stop-after 30s", "stop-after 100ms")
        self.path.write_text(text, encoding="utf-8")
        self._log = folder / f"{name}.log"

    @property
    def edges(self) -> str:
        return f"127.0.0.1:{self.edge_port}"

    async def __aenter__(self) -> Proxy:
        foreground = ("-g", "daemon off; worker_shutdown_timeout 100ms;") if self.name == "nginx" else ()
        options = ("-c",) if self.name == "nginx" else ("-W", "-f")
        with self._log.open("wb") as log:
            program = shutil.which(self.name, path=WHERE_PROGRAMS_ARE) or self.name
            self.process = await asyncio.create_subprocess_exec(
                program, *options, str(self.path), *foreground, stderr=log, stdout=log
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

    def end_connections(self) -> None:
        """Start anew, as for a new configuration: the old connections are ended at once or soon."""
        self.process.send_signal(signal.SIGHUP if self.name == "nginx" else signal.SIGUSR2)


@pytest.fixture(params=["nginx", "haproxy"])
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
async def test_a_long_silence_is_waited_for_and_pings_are_no_fault(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two steps of seven seconds: the edge pings after two of silence."""
    with caplog.at_level(logging.DEBUG):
        async with between(name, tmp_path, 7.0) as (_, proxy), VerifierChannel(proxy.edges) as channel:
            began, run = time.monotonic(), generation(channel, None, sampling(2), make_policy("off"), PROMPT)
            tokens = [token async for emit in run for token in emit.tokens]
    assert tuple(tokens) == target_alone(PROMPT, sampling(2), EOS)
    assert time.monotonic() - began > 7.0
    assert run.session.stats.resumes == 0
    assert "too_many_pings" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.slow
async def test_a_text_goes_on_while_its_connections_are_ended(name: str, tmp_path: Path) -> None:
    async with between(name, tmp_path, 0.02) as (_, proxy), VerifierChannel(proxy.edges) as channel:
        run, tokens = generation(channel, None, sampling(200), make_policy("off"), PROMPT), list[int]()
        async for emit in run:
            before, tokens = len(tokens) // 50, [*tokens, *emit.tokens]
            if len(tokens) // 50 > before:
                proxy.end_connections()
    assert tuple(tokens) == target_alone(PROMPT, sampling(200), EOS)
    assert run.session.stats.resumes > 0


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
        for address in (it.address, f"127.0.0.1:{proxy.api_port}"):
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
