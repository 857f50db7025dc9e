"""Texts go on over faults, byte for byte; and what the benchmark would say if they did not."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client.api.app import Api, ApiSettings
from edge_client.api.endpoints import Defaults, TextEndpoints
from edge_client.api.listening import Listening
from edge_client.api.pairs import Pairs
from edge_client.api.security import Gate
from edge_client.network.verifiers import Verifiers
from edge_client.texts.resume import Journal
from edge_client.texts.text_service import TextService, TextSettings
from lab.benchmarks.daemon import Reading, Told, Violation
from lab.benchmarks.faults.draws import DrawnFault, FaultJob, Kind, draw_job
from lab.benchmarks.faults.run import Client, RunSettings, compare, run
from lab.benchmarks.faults.stage import LinkFaults
from simulator.proxy import Link
from tests.edge_client.api.world import TEMPLATE, Letters, Seats
from tests.support.ports import free_port
from tests.support.tiny import VOCABULARY, running

HEAD = (
    b'data: {"choices": [{"text": "%s", "finish_reason": %s}], "forerun": {"origins": [["%s", "drafted", 2]]}'
)
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\n'
WHOLE = (
    b"id: 1\n" + HEAD % (b"ab", b"null", b"ab") + b"}\n\n"
    b": waiting\n"
    b'id: 2\ndata: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
    b"id: 3\n" + USAGE + b"data: [DONE]\n\n"
)
TOLD = Told("ab", 2, (), "length", (("completion_tokens", 2),))


def read(data: bytes, size: int = 7) -> Reading:
    reading = Reading("talk")
    for start in range(0, len(data), size):
        reading.feed(data[start : start + size])
    return reading


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_right_stream_is_right_however_it_is_cut(size: int) -> None:
    reading = read(WHOLE, size)
    assert reading.done
    assert reading.told() == TOLD
    compare(reading, WHOLE, TOLD)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (WHOLE.replace(b"id: 2", b"id: 1"), "event 2 was due"),
        (WHOLE.replace(b"id: 2", b"id: 3"), "event 2 was due"),
        (WHOLE + b"id: 4\n" + USAGE, "after the end"),
        (WHOLE.replace(b"null", b'"stop"'), "2 ends"),
        (b'id: 1\ndata: {"error": {"message": "no"}}\n\n', "ended with an error"),
    ],
)
def test_a_stream_that_is_no_single_text_is_a_violation(data: bytes, why: str) -> None:
    with pytest.raises(Violation, match=why):
        read(data).told()


@pytest.mark.parametrize(
    ("again", "told", "why"),
    [
        (WHOLE[:-1], TOLD, "another stream; from"),
        (WHOLE, replace(TOLD, text="ac"), "its text differs"),
        (WHOLE, replace(TOLD, num_tokens=3), "its num_tokens differs"),
        (WHOLE, replace(TOLD, finish="stop"), "its finish differs"),
    ],
)
def test_another_text_than_without_faults_is_a_violation(again: bytes, told: Told, why: str) -> None:
    with pytest.raises(Violation, match=why):
        compare(read(WHOLE), again, told)


def test_rounding_may_change_a_text_of_other_verifiers_but_not_one_that_was_shown() -> None:
    other = replace(TOLD, text="another")
    assert compare(read(WHOLE), WHOLE, TOLD, exact=False)
    assert not compare(read(WHOLE), WHOLE, other, exact=False)
    with pytest.raises(Violation, match="another stream"):
        compare(read(WHOLE), WHOLE[:-1], other, exact=False)


async def test_a_deletion_whose_answer_is_lost_loses_no_text() -> None:
    methods = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
        there, told = methods.count(b"DELETE") == 0, methods != [b"GET", b"DELETE"]
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-length: 4\r\n\r\nabcd" % (200 if there else 404) if told else b""
        )
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        assert await Client(f"{host}:{port}", lambda name: None).again("talk") == b"abcd"
    assert methods == [b"GET", b"DELETE", b"DELETE"]


class TinyStage:
    """Two real verifiers with the tiny target behind links, and a daemon's API on a port, all in this
    process. Verifiers stay; the daemon is stopped and made anew over the same journal."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.links: list[LinkFaults] = []
        self._folder = folder
        self._stack = contextlib.AsyncExitStack()
        self._daemon = contextlib.AsyncExitStack()
        self._passing: list[asyncio.Task[None]] = []
        self.num_restarts = 0

    async def __aenter__(self) -> TinyStage:
        for _ in range(2):
            system = await self._stack.enter_async_context(running(step_time=0.004))
            link = await self._stack.enter_async_context(Link.to(system.address))
            self.links.append(LinkFaults(link))
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._daemon.aclose()
        await self._stack.aclose()

    async def inflict(self, struck: DrawnFault) -> None:
        match struck.kind:
            case Kind.RESET | Kind.RESET_BOTH:
                for each in self.links if struck.kind is Kind.RESET_BOTH else [self.links[struck.side]]:
                    each.link.cut()
            case Kind.DAEMON_STOP:
                await self._daemon.aclose()
                self.num_restarts += 1
                await self._start()
            case _:
                self._passing.append(
                    asyncio.create_task(self.links[struck.side].inflict(replace(struck, lasts=0.3)))
                )

    async def settle(self) -> None:
        await asyncio.gather(*self._passing)

    async def _start(self) -> None:
        stack = self._daemon = contextlib.AsyncExitStack()
        addresses = [str(each.link.address) for each in self.links]
        verifiers = await stack.enter_async_context(Verifiers(addresses, vocabulary=VOCABULARY))
        texts = TextService(Letters(), VOCABULARY, verifiers, Seats(), TextSettings())
        pairs = Pairs(TextEndpoints(texts, Defaults(draft_name="tiny", template=TEMPLATE)))
        api = Api(pairs, ApiSettings(Gate()), dict, lambda: "", None, Journal(self._folder))
        stack.push_async_callback(api.streams.close)
        await stack.enter_async_context(Listening(api.app, self.address, grace=0, before=api.streams.go_on))


def tiny_job(number: int) -> FaultJob:
    """In the tiny target's letters."""
    job = draw_job(3, number, ("abc", "fed", "bead"))
    body = {**job.body, "max_tokens": 150, "ignore_eos": True}
    body |= {"stop": ["abab"]} if "stop" in body else {}
    return FaultJob(number, job.path, body)


@pytest.mark.slow
@pytest.mark.api
@pytest.mark.grpc
async def test_no_fault_loses_doubles_or_changes_a_token(tmp_path: Path) -> None:
    weights = {
        Kind.CLIENT_CUT: 3.0,
        Kind.RESET: 3.0,
        Kind.RESET_BOTH: 2.0,
        Kind.BLACK_HOLE: 1.0,
        Kind.HALF_OPEN: 1.0,
        Kind.LOSS: 1.0,
        Kind.LATENCY: 1.0,
        Kind.DAEMON_STOP: 2.0,
    }
    settings = RunSettings(faults=16, seed=3, clients=3, mean_gap=0.3, weights=weights)
    async with asyncio.timeout(120), TinyStage(tmp_path) as stage:
        result = await run(stage, tuple(tiny_job(number) for number in range(6)), settings)
    assert result.violation == ""
    assert result.faults == 16
    assert stage.num_restarts == result.recovery["daemon_stop"]["faults"] > 0
    assert result.texts_taken_up > 0
