"""Two ranks as processes, and what may happen to them; `python -m tests.cloud_verifier.engine.ranks`.

torch is imported once, and every scenario forks its ranks from there. Each rank really joins the group, tells
or follows; what it computes is a collective over both, as a divided model's layers are. Prints, as JSON, the
exit codes, the last words on standard error, and the steps that the follower computed.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cloud_verifier.core.engine_protocol import StepItem, StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.engine.parallel import Leader, LeadingEngine, Ranks, follow, join, leave
from common.errors import ForerunError, LocalError
from common.sampling import SamplingParams
from tests.support.ports import free_port

KILLED = 9
PATIENCE = 4.0
SIZE = 2


def plan_of(*tokens: int) -> StepPlan:
    """A step of one session."""
    row = np.arange(len(tokens), dtype=np.int32)
    ids = np.array(tokens, dtype=np.int32)
    return StepPlan((StepItem(7, row[:0], ids, row, row - 1, row, row[-1:], SamplingParams(seed=5)),))


class SummingEngine(TargetEngine):
    """Sums a step's tokens over the ranks. Refuses token 13 before anybody hears of the step."""

    info = TargetInfo("sum", 100, 100, 100, (), b"")

    def __init__(self, tell: Callable[[tuple[StepItem, ...]], None]) -> None:
        self._tell = tell
        self.before_collective: Callable[[], None] = lambda: None

    def evaluate(self, plan: StepPlan) -> StepResult:
        if 13 in plan.items[0].tokens:
            raise LocalError("a plan that breaks a rule")
        self._tell(plan.items)
        self.before_collective()
        return StepResult((total(plan).numpy().astype(np.int32),), (np.zeros(1, np.float32),))


def total(plan: StepPlan) -> Tensor:
    """float32 [1]: what both ranks have, added up."""
    found = torch.tensor([float(plan.items[0].tokens.sum())])
    dist.all_reduce(found)
    return found


def hang() -> None:
    threading.Event().wait()


def die() -> NoReturn:
    os._exit(KILLED)


class Lead:
    """Rank 0 of a scenario."""

    def __init__(self, ranks: Ranks) -> None:
        self.leader = Leader(ranks)
        self.inner = SummingEngine(self.leader.tell)
        self.engine = LeadingEngine(self.inner, self.leader)

    def wait_until_lost(self) -> NoReturn:
        gone = threading.Event()
        self.leader.when_lost(gone.set)
        gone.wait()
        assert self.leader.lost is not None
        raise self.leader.lost

    def steps(self) -> None:
        """Steps, a refused one, silence for longer than the follower's patience, a step, the end."""
        assert self.engine.evaluate(plan_of(1, 2, 3)).choices[0].tolist() == [12]
        with contextlib.suppress(LocalError):
            self.engine.evaluate(plan_of(13))
            raise AssertionError("a plan that breaks a rule was computed")
        threading.Event().wait(1.5 * PATIENCE)
        assert self.engine.evaluate(plan_of(40)).choices[0].tolist() == [80]
        self.leader.end()

    def leader_dies(self) -> None:
        self.engine.evaluate(plan_of(1))
        die()

    def leader_dies_in_a_step(self) -> None:
        self.inner.before_collective = die
        self.engine.evaluate(plan_of(1))

    def leader_hangs(self) -> None:
        self.leader.lock.acquire()  # so that its beat stops, too
        hang()

    def leader_fails_in_a_step(self) -> None:
        def fail() -> None:
            raise MemoryError("no memory for a step")

        self.inner.before_collective = fail
        self.engine.evaluate(plan_of(1))

    def follower_dies(self) -> None:
        self.wait_until_lost()

    def follower_fails_in_a_step(self) -> None:
        self.engine.evaluate(plan_of(99))

    def follower_hangs_in_a_step(self) -> None:
        self.engine.evaluate(plan_of(1))


class Follow:
    """Rank 1 of a scenario; follows unless it has a method of the scenario's name."""

    def __init__(self, ranks: Ranks, seen: Path) -> None:
        self._ranks = ranks
        self._seen = seen

    def compute(self, plan: StepPlan) -> Tensor:
        if 99 in plan.items[0].tokens:
            raise MemoryError("no memory on this rank")
        with self._seen.open("a") as file:
            item = plan.items[0]
            file.write(json.dumps([item.session, item.tokens.tolist(), item.parents.tolist()]) + "\n")
        return total(plan)

    def follow(self) -> None:
        follow(self.compute, self._ranks)

    def follower_dies(self) -> None:
        die()

    def follower_hangs_in_a_step(self) -> None:
        def stuck(plan: StepPlan) -> Tensor:
            hang()
            return total(plan)

        follow(stuck, Ranks(1, SIZE, 3600.0, self._ranks.control))


HANGING = {"leader_hangs": 0, "follower_hangs_in_a_step": 1}
"""Ranks that nothing ends but a signal, which a supervisor sends once the other rank has ended."""

SCENARIOS = tuple(name for name in vars(Lead) if not name.startswith("_") and name != "wait_until_lost")


def run_rank(rank: int, scenario: str, folder: Path) -> NoReturn:
    """What `forerun verify` does with errors, in a process of its own."""
    os.dup2(os.open(folder / f"{scenario}.{rank}", os.O_CREAT | os.O_WRONLY), 2)
    code = 0
    try:
        ranks = join("cpu", PATIENCE)
        part = Lead(ranks) if ranks.leads else Follow(ranks, folder / f"{scenario}.seen")
        getattr(part, scenario if hasattr(part, scenario) else "follow")()
        leave()
    except ForerunError as error:
        print(f"forerun: {error}", file=sys.stderr)
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


def fork_ranks(run: Callable[[int], NoReturn]) -> list[int]:
    """Fork both ranks of a group, each of which runs with its number; their process ids."""
    port, processes = free_port(), []
    for rank in range(SIZE):
        process = os.fork()
        if process == 0:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(SIZE), MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test",
            )  # fmt: skip
            run(rank)
        processes.append(process)
    return processes


def wait_for(processes: list[int], hanging: int | None) -> list[int]:
    """The exit codes by rank."""
    codes = dict[int, int]()
    for rank in sorted(range(SIZE), key=lambda rank: rank == hanging):
        if rank == hanging:
            os.kill(processes[rank], signal.SIGKILL)
        codes[rank] = os.waitstatus_to_exitcode(os.waitpid(processes[rank], 0)[1])
    return [codes[rank] for rank in range(SIZE)]


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = {each: fork_ranks(partial(run_rank, scenario=each, folder=folder)) for each in SCENARIOS}
        results = {}
        for scenario, processes in started.items():
            codes = wait_for(processes, HANGING.get(scenario))
            words = [(folder / f"{scenario}.{rank}").read_text() for rank in range(SIZE)]
            seen = folder / f"{scenario}.seen"
            steps = [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []
            results[scenario] = {"codes": codes, "words": words, "steps": steps}
        print(json.dumps(results))


if __name__ == "__main__":
    main()
