"""Runs the processes of a load: a measured verifier, and clients on another core."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forerun.rig import START_TIMEOUT, Processes, RigProcess
from lab.bench.load import LoadJob, LoadText, TextRun, shares
from simulator.knowledge import Candidates


@dataclass(slots=True)
class StageOutcome:
    """Holds the results of a load. Times are in seconds, absolute ones monotonic."""

    runs: list[TextRun]
    began_at: float
    verifier: dict[str, Any]  # `Meter.take` over the load
    client_cpu: list[float]  # share of a core used by each client process


class Stage(Processes):
    """Starts the verifier, then the clients. `verifier` are options of `forerun verify`."""

    def __init__(self, verifier: Sequence[str], client_processes: int = 1, *, pin: bool = True) -> None:
        super().__init__(pin=pin)
        self._options = tuple(verifier)
        self._num_clients = client_processes
        self._clients: list[RigProcess] = []
        self.address = ""  # of the verifier

    async def _begin(self) -> None:
        self._verifier, self.address = await self.start_verifier(*self._options, module="lab.bench.host")
        places = [0, *range(2, len(self._cores))]  # the verifier has the second core
        for number in range(self._num_clients):
            core = places[number % len(places)]
            self._clients.append(await self.start("clients", module="lab.bench.clients", core=core))

    async def learn(self, texts: Sequence[LoadText], said: dict[int, list[Candidates]] | None = None) -> None:
        """Send the clients the texts, and the recorded drafts of them."""
        message = {"do": "learn", "texts": list(map(asdict, texts)), "said": said or {}}
        for child in self._clients:
            await child.write(message)
            await child.read(START_TIMEOUT)

    async def run(self, job: LoadJob) -> StageOutcome:
        """Run one load, shared among the client processes. Raise `UnavailableError` if a process ended."""
        parts = shares(job, min(len(self._clients), job.clients))
        clients = self._clients[: len(parts)]
        for child, part in zip(clients, parts, strict=True):
            await child.write({"do": "run", "job": asdict(part)})
        for child in clients:
            await child.read(START_TIMEOUT)
        await self._took()
        for child in clients:
            await child.write({"do": "go"})
        ends = await asyncio.gather(*(child.read() for child in clients))
        runs = (TextRun(**run) for end in ends for run in end["runs"])
        return StageOutcome(
            runs=sorted(runs, key=lambda run: run.opened_at),
            began_at=min(end["began_at"] for end in ends),
            verifier=await self._took(),
            client_cpu=[end["cpu"] / end["wall"] if end["wall"] else 0.0 for end in ends],
        )

    async def _took(self) -> dict[str, Any]:
        """Return the verifier's figures since the last call."""
        await self._verifier.write({})
        return await self._verifier.read()
