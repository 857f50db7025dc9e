"""Runs processes of Forerun on one machine and ends them in the reverse order of their start.

`Rig` is a whole system: verifier and edge as processes, with the link between them in this process. The edge
is the daemon, which writes texts by its API.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from common.errors import UnavailableError
from common.sampling import SamplingParams
from edge_client.formats.detokenizer import Words
from edge_client.process.client import LocalClient, ServerEvent, connect
from edge_client.process.paths import find_paths
from edge_client.texts.events import ModeChanged, TextAdded, TextEnded, TextEvent
from forerun.chat.answer import DONE, read_events
from simulator.proxy import Bandwidth, Link, LinkDirection, Toxic, rtt

PRIVACY = ("--privacy", "off")
"""Privacy option of both sides, so that bytes measure the schemes and not the padding."""

VERIFIER = "lab.rig_verifier"
"""Module of the rig's verifier: `forerun verify` with a floor of its steps."""

START_TIMEOUT = 180.0
"""Seconds until a process must be ready; importing torch from a slow disk takes tens of seconds."""

DEVICE = "device"
"""Policy of a text that the draft model writes alone. It may differ from the target's."""

LONGEST_LINE = 2**26  # bytes

END_TIMEOUT = 60.0
"""Seconds for a process to end after a signal."""


class RigProcess:
    """Runs a Forerun process that exchanges lines of JSON on its standard streams."""

    def __init__(
        self,
        name: str,
        *arguments: str,
        module: str = "forerun",
        core: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`core`: the processor core to run on; None: any. `environment`: variables beside this process's."""
        self.name = name
        self._command = (sys.executable, "-m", module, *arguments)
        self._core = core
        self._environment = {**os.environ, **(environment or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def spawn(self) -> None:
        """Start the process."""
        await self._spawn(stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)

    async def _spawn(self, **streams: Any) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, **streams, limit=LONGEST_LINE, env=self._environment
        )
        if self._core is not None:  # before it starts threads, which inherit the core
            os.sched_setaffinity(self._process.pid, {self._core})

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "spawned before"
        return self._process

    @property
    def code(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.process.returncode

    def check(self) -> None:
        """Raise `UnavailableError` if the process ended by itself."""
        if self.code is not None:
            raise UnavailableError(f"the {self.name} ended with code {self.code}; see its message above")

    async def read(self, patience: float | None = None) -> dict[str, Any]:
        """Return the next line. Raise `UnavailableError` if the process ended or is late."""
        assert self.process.stdout is not None, "started with a pipe"
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), patience)
        except TimeoutError as error:
            raise UnavailableError(f"the {self.name} was not ready within {patience:.0f} s") from error
        if not line:
            code = await self.process.wait()
            raise UnavailableError(f"the {self.name} ended with code {code}; see its message above")
        message: dict[str, Any] = json.loads(line)
        return message

    async def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None, "started with a pipe"
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def gone(self, patience: float = END_TIMEOUT) -> None:
        """Wait for the process's end. Raise `UnavailableError` after `patience` seconds."""
        try:
            await asyncio.wait_for(self.process.wait(), patience)
        except TimeoutError as error:
            words = f"the {self.name} got a signal to end and still runs after {patience:g} s"
            raise UnavailableError(words) from error

    async def stop(self, patience: float = 10.0) -> None:
        """End the process by SIGTERM, after `patience` seconds by force."""
        if self._process is None or self.code is not None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.send(signal.SIGTERM)
        with contextlib.suppress(UnavailableError):
            await self.gone(patience)
        await self.close()

    async def close(self) -> None:
        """End the process by force, even if it is frozen."""
        if self._process is not None and self.code is None:
            self.send(signal.SIGKILL)
            await self.gone()


async def attempts(pause: float = 0.05) -> AsyncIterator[None]:
    """Yield one attempt after the other. Raise `UnavailableError` after `START_TIMEOUT`."""
    for _ in range(int(START_TIMEOUT / pause)):
        yield
        await asyncio.sleep(pause)
    raise UnavailableError(f"a process was not ready within {START_TIMEOUT:g} s")


def own_places(folder: Path) -> dict[str, str]:
    """Return the environment of a daemon with all folders below this one, and make the folders."""
    folder = folder.absolute()
    places = {f"XDG_{name}_HOME": folder / name.lower() for name in ("STATE", "CONFIG", "DATA", "CACHE")}
    places["XDG_RUNTIME_DIR"] = folder / "runtime"
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    return {name: str(place) for name, place in places.items()}


class RigEdge:
    """Writes texts by the API of a daemon, one after the other."""

    def __init__(self, client: LocalClient, draft: str) -> None:
        """`draft`: the daemon's name of its draft model."""
        self._client, self._draft = client, draft

    @classmethod
    async def ready(cls, child: RigProcess, places: Mapping[str, str]) -> Self:
        """Return the edge of a daemon once it answers, has a verifier and has loaded its draft model."""
        client = await _serving(child, places)
        cards = client.get("/v1/models")["data"]
        edge = cls(client, next(each["id"] for each in cards if each["meta"]["writer"] == "draft"))
        async for _ in edge.events("\n", DEVICE, SamplingParams(max_tokens=1)):
            pass
        return edge

    async def events(
        self, prompt: str, policy: str, sampling: SamplingParams, **ours: Any
    ) -> AsyncIterator[tuple[float, TextEvent]]:
        """Write a text and yield its events with their times of arrival, seconds of the monotonic clock.

        `ours` are fields of the request's own object `forerun`. Raise the `ForerunError` that ends the text.
        """
        body = {"prompt": prompt, "stream": True, **_fields(sampling), "forerun": {"origins": True, **ours}}
        if policy == DEVICE:
            body["model"] = self._draft
        else:
            body["forerun"]["policy"] = policy
        frames = self._client.events("/v1/completions", body)
        while True:
            came_at, frame = await asyncio.to_thread(_next, frames)
            if frame is None:
                raise UnavailableError("the edge ended a text before it was whole")
            if frame.data == DONE:
                return
            for event in read_events(frame.json()):
                yield came_at, event


async def _serving(child: RigProcess, places: Mapping[str, str]) -> LocalClient:
    """Return a client of a daemon once it answers and has a verifier."""
    async for _ in attempts():
        child.check()
        with contextlib.suppress(UnavailableError):
            client = connect(find_paths(places).daemon)
            if all(each["health"] == "ready" for each in client.get("/v1/status")["verifiers"]):
                return client
    raise AssertionError("the attempts end with an error")


def _next(frames: Iterator[ServerEvent]) -> tuple[float, ServerEvent | None]:
    frame = next(frames, None)
    return time.monotonic(), frame


def _fields(sampling: SamplingParams) -> dict[str, Any]:
    """Return the sampling parameters as fields of a request, all of them: none is the target's default."""
    given = asdict(sampling)
    grammar, given["logit_bias"] = given.pop("grammar"), {str(token): by for token, by in sampling.logit_bias}
    if grammar:
        raise ValueError("the rig sends no grammar")
    return given


class Processes:
    """Ends its processes in the reverse order of their start. An async context manager."""

    def __init__(self, *, pin: bool = True) -> None:
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._cores = allowed if pin and len(allowed) > 1 else []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _begin(self) -> None:
        """Start the first processes."""

    async def start(
        self,
        name: str,
        *arguments: str,
        module: str = "forerun",
        core: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> RigProcess:
        """Start one more process, on the core of this index (see `core`)."""
        child = RigProcess(name, *arguments, module=module, core=self.core(core), environment=environment)
        await child.spawn()
        self._stack.push_async_callback(child.stop)
        return child

    async def start_verifier(self, *options: str, module: str = "") -> tuple[RigProcess, str]:
        """Start `forerun verify`, or a `module` like it, on the second core. Return the process and its
        address once it listens."""
        own = ("--listen", "127.0.0.1:0", "--json", "--grace", "0")
        what = () if module else ("verify",)
        child = await self.start("verifier", *what, *own, *options, module=module or "forerun", core=1)
        return child, (await child.read(START_TIMEOUT))["listening"]

    async def start_edge(self, *options: str) -> RigEdge:
        """Start a daemon with folders of its own on the first core, and wait until it is ready."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="forerun-rig-"))
        places = own_places(Path(folder))
        own = ("--listen", "127.0.0.1:0", "--draft-seats", "1", "--keep-alive=-1")
        quiet = ("--remember", "0", "--log-level", "error")
        child = await self.start("edge", "edge", *own, *quiet, *options, core=0, environment=places)
        return await RigEdge.ready(child, places)

    def core(self, index: int | None) -> int | None:
        """Return the number of a core; None with one core or without `pin`."""
        return self._cores[index % len(self._cores)] if self._cores and index is not None else None


@dataclass(frozen=True, slots=True)
class RigSettings:
    """Sets the models and the link of a rig."""

    target: str
    draft: str
    rtt_ms: float = 60.0
    jitter_ms: float = 0.0
    bandwidth_kbps: float = 0.0  # KB/s each way; 0 = unlimited
    step_floor_ms: float = 0.0
    link_seed: int = 1
    recall: bool = False  # both sides propose repeated tokens
    drafter: str | None = None  # the verifier's own, as for `forerun verify`
    tokens: str = ""  # file of the target's tokens, for a draft with other ones
    verifier_options: tuple[str, ...] = ()  # further ones of `forerun verify`

    @property
    def target_options(self) -> list[str]:
        """Return the options of `forerun verify` for the target and its step floor."""
        more = ["--step-floor", str(self.step_floor_ms)] if self.step_floor_ms else []
        more += ["--drafter", self.drafter] if self.drafter else []
        more += self.verifier_options
        return ["--model", self.target, "--threads", "1", "--log-level", "warning", *more]


class Rig(Processes):
    """Starts verifier, link and edge, in that order."""

    def __init__(self, settings: RigSettings) -> None:
        super().__init__()
        self.settings = settings
        self._edge: RigEdge | None = None
        self._link: Link | None = None

    async def _begin(self) -> None:
        settings = self.settings
        _, address = await self._start_verifier()
        toxics: list[Toxic] = list(rtt(settings.rtt_ms, jitter=settings.jitter_ms))
        if settings.bandwidth_kbps:
            toxics += [Bandwidth(settings.bandwidth_kbps, stream=stream) for stream in LinkDirection]
        link = Link.to(address, *toxics, seed=settings.link_seed)
        self._link = await self._stack.enter_async_context(link)
        self._edge = await self.start_linked_edge()

    async def start_linked_edge(self) -> RigEdge:
        """Start one more edge behind the link."""
        where = ("--verifier", str(self.link.address), "--draft", self.settings.draft)
        tokens = ("--tokens", self.settings.tokens) if self.settings.tokens else ()
        return await self.start_edge(*where, *tokens, "--threads", "1", *PRIVACY)

    @property
    def link(self) -> Link:
        assert self._link is not None, "entered before"
        return self._link

    async def events(
        self, prompt: str, policy: str, sampling: dict[str, Any], **ours: Any
    ) -> AsyncIterator[tuple[float, TextEvent]]:
        """Write a text on the edge and yield its events as `RigEdge.events` does.

        `ours` may hold `recall` (default: the settings'), `acceptance` and other fields of a request.
        """
        assert self._edge is not None, "entered before"
        fields = {"recall": self.settings.recall, **ours}
        async for event in self._edge.events(prompt, policy, SamplingParams(**sampling), **fields):
            yield event

    async def complete(
        self, prompt: str, policy: str, sampling: dict[str, Any], **ours: Any
    ) -> dict[str, Any]:
        """Write a text. Return its record, with the bytes that crossed the link."""
        before, record = self.link.counters, TextRecord()
        async for came_at, event in self.events(prompt, policy, sampling, **ours):
            record.take(came_at, event)
        after = self.link.counters
        return {
            **record.as_run(),
            "link_bytes_up": after.upstream.num_bytes - before.upstream.num_bytes,
            "link_bytes_down": after.downstream.num_bytes - before.downstream.num_bytes,
        }

    async def _start_verifier(self) -> tuple[RigProcess, str]:
        return await self.start_verifier(*self._verifier_options(), module=VERIFIER)

    def _verifier_options(self) -> list[str]:
        recall = "--recall" if self.settings.recall else "--no-recall"
        return [*self.settings.target_options, recall, *PRIVACY]


class TextRecord:
    """Collects the events of a text for `simulator.figures`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._arrivals = list[float]()
        self._parts, self._modes = list[str](), list[dict[str, str]]()
        self._figures: Mapping[str, Any] = {}

    def take(self, came_at: float, event: TextEvent) -> None:
        """Add an event that came at this time of the monotonic clock."""
        match event:
            case TextAdded():
                self._parts.append(event.text)
                num_tokens = sum(span.num_tokens for span in event.spans)
                self._arrivals += [1e3 * (came_at - self._began)] * num_tokens
            case ModeChanged():
                self._modes.append({"mode": event.mode, "why": event.why})
            case TextEnded():
                self._figures = event.figures

    def as_run(self) -> dict[str, Any]:
        """Return the run. `arrivals_ms` has a time for each token, in milliseconds since the request."""
        times = {"draft_time": "draft_ms", "compute_time": "step_ms", "queue_time": "queue_ms"}
        counts = {name: value for name, value in self._figures.items() if isinstance(value, int | float)}
        return {
            "text": "".join(self._parts),
            "arrivals_ms": self._arrivals,
            "modes": self._modes,
            "rtt_ms": self._figures["rtt_p50_ms"],
            "stats": {**counts, **{name: self._figures[key] / 1e3 for name, key in times.items()}},
        }


@contextlib.contextmanager
def words_of(draft: str) -> Iterator[Words]:
    """Read the tokens of a draft model's file, which are the target's."""
    from common.llama.model import LlamaModel, LlamaSettings

    with LlamaModel(LlamaSettings(draft), weights=False) as words:
        yield words


def check_models(target: Path, draft: Path) -> None:
    """Raise `UnavailableError` with a remedy if a model of the demo pair is missing."""
    for path in (target, draft):
        if not path.exists():
            raise UnavailableError(
                f"{path} is missing; run from a clone, or make it with `python -m lab.demo_models.train`"
            )
