"""Tries grammars in processes of their own, for `trial`, which starts this one and ends it.

    python -m common.grammar.trial_child

The first line of JSON on standard input describes the vocabulary, each further line brings a `grammar`. For
each grammar one line goes out: `fits` with the bytes that it takes, `refused` with llguidance's words, or
`ended` with what it used up.
Every grammar is compiled in a fork that has `MEMORY` more than this process and `TIME` of a processor. A
compile that llguidance does not bound ends with its fork.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import select
import signal
import sys
from typing import Any, BinaryIO

from common.errors import UserError
from common.grammar.library import new_matcher
from common.grammar.strings import unforced
from common.grammar.tokens import Tokens

MEMORY = 64 * 2**20
"""Bytes that a compile may take. The largest honest schema that was tried (1,500 properties) takes 18 MB."""

TIME = 0.5
"""Seconds of a processor for one compile. That schema takes 0.2 s, usual ones 0.002 s."""

PATIENCE = 8.0
"""Seconds on the clock for one compile. One that neither ends nor uses up `TIME` has hardly been run."""

MAX_LINE = 2**26
"""Bytes of what is asked: a grammar has 64 KiB, and a vocabulary's single bytes and special tokens less."""

MAX_ANSWER = 2**14  # bytes of what a fork says

IDLE = 1800.0
"""Seconds without a grammar after which the process ends."""


def main() -> int:
    """Serve until standard input ends."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory is short this is the process to end
    with contextlib.suppress(OSError):
        os.nice(5)  # the machine's models come first
    lines, out = sys.stdin.buffer, sys.stdout.buffer
    first = lines.readline(MAX_LINE)
    if not first:
        return 0
    tokens = _tokens(json.loads(first))
    tokens.tokenizer  # noqa: B018 - made here once, for all forks
    _say(out, {"ready": True})
    while line := _next(lines):
        _say(out, _tried(json.loads(line)["grammar"], tokens))
    return 0


def _next(lines: BinaryIO) -> bytes:
    """The next line; empty if none comes."""
    there, _, _ = select.select([lines], [], [], IDLE)
    return lines.readline(MAX_LINE) if there else b""


def _tokens(told: dict[str, Any]) -> Tokens:
    pieces: list[bytes | None] = [None] * told["width"]
    for token, piece in told["pieces"].items():
        pieces[int(token)] = bytes.fromhex(piece)
    return Tokens(pieces, told["special"], told["eos"], told["width"])


def _tried(grammar: str, tokens: Tokens) -> dict[str, str]:
    """What became of a grammar in a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _compile(grammar, tokens, writing)
    os.close(writing)
    said = b""
    try:
        there, _, _ = select.select([reading], [], [], PATIENCE)
        said = os.read(reading, MAX_ANSWER) if there else b""
        if not there:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(reading)
    _, status = os.waitpid(child, 0)
    if said:
        found: dict[str, str] = json.loads(said)
        return found
    if not there:
        return {"ended": "clock"}
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
    return {"ended": "time" if late else "memory"}


def _compile(grammar: str, tokens: Tokens, out: int) -> None:
    """Compile in a fork, say how it went, and end the fork."""
    try:
        signal.setitimer(signal.ITIMER_PROF, TIME)  # which ends the process
        _bound()
        before = _resident()
        try:
            made = new_matcher(unforced(grammar), tokens.tokenizer)
            made.compute_bitmask()
            found = {"fits": str(max(0, _resident() - before))}
        except UserError as error:
            found = {"refused": str(error)[:1000]}
        os.write(out, json.dumps(found).encode())
    finally:
        os._exit(0)


def _resident() -> int:
    """Bytes of this process that are in memory; 0 where that cannot be read."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read(200).split()[1]) * mmap.PAGESIZE
    return 0


def _bound() -> None:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read(200).split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))


def _say(out: BinaryIO, found: dict[str, Any]) -> None:
    out.write(json.dumps(found).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
