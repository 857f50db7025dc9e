"""Plays thousands of damaged model files; `test_model_files` says how many.

What must hold, whatever a file holds (`tests.fuzz.corrupt` draws them):

- our own checks answer within `LONGEST_READ` seconds, with nothing or a `UserError`;
- a GGUF file that they pass is loaded by the code of the trial's child in a process of its own. That process
  may refuse the file or die of it; both are counted;
- a GGUF file that the trial passes does not end the process that loads it as the daemon does;
- a safetensors file that our reader passes is read by the safetensors library without an error.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from tests.fuzz.corrupt import GGUF, SAFETENSORS, damaged, whole_safetensors

LONGEST_READ = 2.0
"""Seconds; the files have some hundred kilobytes, and a reader that believes a number takes for ever."""

LONGEST_LOAD = 60
"""Seconds of a forked process, after which it is ended and counts as hanging."""

PART = 250  # cases of one process
FORMATS = ("gguf", "safetensors")


@dataclass
class FileTally:
    """What came of some cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)  # laws, in words

    def add(self, other: FileTally) -> None:
        self.outcomes += other.outcomes
        self.broken += other.broken


class FileBatch(NamedTuple):
    """Cases of one process, by their seeds."""

    kind: str
    first: int
    num_cases: int

    def run(self) -> FileTally:
        with tempfile.TemporaryDirectory() as folder:
            play = _gguf(Path(folder)) if self.kind == "gguf" else _safetensors(Path(folder))
            tally = FileTally()
            for seed in range(self.first, self.first + self.num_cases):
                try:
                    play(seed, tally)
                except Exception as error:  # noqa: BLE001  the law is that there is none
                    tally.broken.append(f"{self.kind} {seed}: {type(error).__name__}: {error}")
            return tally


Play = Callable[[int, FileTally], None]


def _read(tally: FileTally, what: str, read: Callable[[], object]) -> bool:
    """Whether our reader passes it; a broken law if it is slow or has nothing to say."""
    began, passed = time.monotonic(), True
    try:
        read()
    except UserError as error:
        passed = False
        if len(str(error)) < 20:
            tally.broken.append(f"{what}: refused without a sentence: {error}")
    taken = time.monotonic() - began
    if taken > LONGEST_READ:
        tally.broken.append(f"{what}: reading it took {taken:.1f} s")
    return passed


def _gguf(folder: Path) -> Play:
    """Everything is imported here, before anything forks."""

    from common.llama import library, load_trial, runtime  # noqa: F401
    from common.llama.files import find_model
    from common.llama.model import LlamaSettings
    from edge_client.draft import group  # noqa: F401
    from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf

    shapes = (TinyShape(270, 32, 64, 2, 2, 1), TinyShape(270, 32, 64, 1, 2, 2, quantised=True))
    whole = [write_tiny_gguf(folder / f"{n}.gguf", shape).read_bytes() for n, shape in enumerate(shapes)]
    library.library()
    path = folder / "damaged.gguf"

    def play(seed: int, tally: FileTally) -> None:
        name, data = damaged(whole[seed // len(GGUF) % len(whole)], GGUF, seed)
        path.write_bytes(data)
        if not _read(tally, f"gguf {seed} ({name})", lambda: find_model(str(path))):
            verdict = "refused by our reader"
        else:
            settings = LlamaSettings(str(path), batch_invariant=True)
            verdict = _verdict(_forked(lambda: load_trial.try_file(settings, weights=True)))
        tally.outcomes[f"gguf: {verdict}"] += 1
        if verdict == "loads" and (end := _verdict(_forked(lambda: _as_the_daemon(path)))) not in FINE:
            tally.broken.append(f"gguf {seed} ({name}): passed its trial, then {end}")

    return play


FINE = ("loads", "refused by llama.cpp")
"""How a file may end in the daemon itself."""


def _verdict(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hangs" if number == signal.SIGALRM else f"ends its process ({signal.Signals(number).name})"
    return {0: "loads", 1: "refused by llama.cpp"}.get(os.WEXITSTATUS(status), "raises what nobody expects")


def _forked(work: Callable[[], None]) -> int:
    """The wait status of a process that does this."""
    child = os.fork()
    if child == 0:
        os._exit(_in_child(work))
    return os.waitpid(child, 0)[1]


def _in_child(work: Callable[[], None]) -> int:
    """0, 1 for a sentence, 2 for anything else. llama.cpp's last words go nowhere."""
    signal.alarm(LONGEST_LOAD)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.environ["GGML_NO_BACKTRACE"] = "1"
    try:
        work()
    except UserError:
        return 1
    except BaseException:  # noqa: BLE001  its parent tells
        return 2
    return 0


def _as_the_daemon(path: Path) -> None:
    """The tokens, then the weights in a context of the daemon's kind, then draft steps."""
    from common.llama.model import LlamaModel, LlamaSettings
    from common.llama.runtime import LlamaRuntime
    from common.sampling import SamplingParams
    from edge_client.core.effects import DraftRow
    from edge_client.draft.group import DraftGroup, MemberDrafter

    settings = LlamaSettings(str(path), n_ctx=512, n_seq_max=16, n_batch=64, max_rows=8, threads=1)
    with LlamaModel(settings, weights=False) as words:
        words.token_table()
    with LlamaRuntime(settings) as runtime:
        prompt = tuple(runtime.tokenize("What is a tree? It has a root, and", True)) or (0,)
        drafter = MemberDrafter(DraftGroup(runtime, 1))
        drafter.start(prompt, 1, SamplingParams())
        (first,) = drafter.expand([DraftRow(1, None, prompt[-1], len(prompt) - 1)])
        rows = [DraftRow(2 + n, 1, token, len(prompt)) for n, token in enumerate(first.tokens[:3])]
        if rows:
            drafter.expand(rows)


def _safetensors(folder: Path) -> Play:
    from safetensors.numpy import load_file

    from cloud_verifier.engine.model.weight_files import check_file

    whole, path = whole_safetensors(), folder / "model.safetensors"

    def play(seed: int, tally: FileTally) -> None:
        name, data = damaged(whole, SAFETENSORS, seed)
        path.write_bytes(data)
        passed = _read(tally, f"safetensors {seed} ({name})", lambda: check_file(path))
        tally.outcomes[f"safetensors: {'loads' if passed else 'refused by our reader'}"] += 1
        if passed:
            load_file(path)

    return play


def play(cases: int, first: int = 0, kinds: tuple[str, ...] = FORMATS) -> FileTally:
    """Play so many cases, evenly over the formats, in processes of their own, as cases fork."""
    each = -(-cases // len(kinds))
    todo = [
        FileBatch(kind, first + start, min(PART, each - start))
        for start in range(0, each, PART)
        for kind in kinds
    ]
    tally = FileTally()
    with ProcessPoolExecutor(min(len(todo), os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        for played in pool.map(FileBatch.run, todo):
            tally.add(played)
    return tally
