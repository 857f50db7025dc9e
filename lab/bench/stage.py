"""Runs the processes of a load: a measured verifier, and clients on another core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab.bench.load import LoadJob, LoadText, TextRun
from lab.rig import START_TIMEOUT, Processes
from simulator.knowledge import Candidates


@dataclass(slots=True)
class StageOutcome:
    """Holds the results of a load. Times are in seconds, absolute ones monotonic."""

    runs: list[TextRun]
    began_at: float
    verifier: dict[str, Any]  # `Meter.take` over the load
    client_cpu: float  # share of a core


class Stage(Processes):
    """Starts the verifier, then the clients. `verifier` are options of `forerun verify`."""

    def __init__(self, verifier: Sequence[str], *, pin: bool = True) -> None:
        super().__init__(pin=pin)
        self._options = tuple(verifier)
        self.address = ""  # of the verifier

    async def _begin(self) -> None:
        self._verifier, self.address = await self.start_verifier(*self._options, module="lab.bench.host")
        self._clients = await self.start("clients", module="lab.bench.clients", core=0)

    async def learn(self, texts: Sequence[LoadText], said: dict[int, list[Candidates]] | None = None) -> None:
        """Send the clients the texts, and the recorded drafts of them."""
        await self._clients.write({"do": "learn", "texts": list(map(asdict, texts)), "said": said or {}})
        await self._clients.read(START_TIMEOUT)

    async def run(self, job: LoadJob) -> StageOutcome:
        """Run one load. Raise `UnavailableError` if a process ended."""
        await self._clients.write({"do": "run", "job": asdict(job)})
        await self._clients.read(START_TIMEOUT)
        await self._took()
        await self._clients.write({"do": "go"})
        end = await self._clients.read()
        runs = (TextRun(**run) for run in end["runs"])
        return StageOutcome(
            runs=sorted(runs, key=lambda run: run.opened_at),
            began_at=end["began_at"],
            verifier=await self._took(),
            client_cpu=end["cpu"] / end["wall"] if end["wall"] else 0.0,
        )

    async def _took(self) -> dict[str, Any]:
        """Return the verifier's figures since the last call."""
        await self._verifier.write({})
        return await self._verifier.read()
