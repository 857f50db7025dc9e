"""Tries grammars in processes of their own, for `compile_trial`, which starts this one and ends it.

    python -m common.grammar.compile_trial_child

The first line of JSON on standard input describes the vocabulary, each further line brings a `grammar`. For
each grammar one line goes out: `fits` with the bytes that it takes, `refused` with llguidance's words, or
`ended` with what it used up.
Every grammar is compiled in a fork that has `MEMORY` more than this process and `TIME` of a processor. A
compile that llguidance does not bound ends with its fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from typing import Any

from common.child import addresses, die_first, limit, resident, serve
from common.errors import UserError
from common.grammar.strings import new_matcher, unforced
from common.grammar.tokens import Tokens

MEMORY = 64 * 2**20
"""Bytes that a compile may take. The largest honest schema that was tried (1,500 properties) takes 18 MB."""

TIME = 0.5
"""Seconds of a processor for one compile. That schema takes 0.2 s, usual ones 0.002 s."""

PATIENCE = 8.0
"""Seconds on the clock for one compile. One that neither ends nor uses up `TIME` has hardly been run."""

MAX_LINE = 2**26
"""Bytes of a request line: a grammar has 64 KiB, and a vocabulary's single bytes and special tokens less."""

MAX_ANSWER = 2**14  # bytes of what a fork says


def main() -> None:
    """Serve until standard input ends."""
    die_first()
    with contextlib.suppress(OSError):
        os.nice(5)  # the machine's models come first
    serve(_begin, MAX_LINE)


def _begin(vocabulary: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, str]]:
    tokens = _tokens(vocabulary)
    tokens.tokenizer  # noqa: B018 - made here once, for all forks
    return lambda message: _tried(message["grammar"], tokens)


def _tokens(told: dict[str, Any]) -> Tokens:
    pieces: list[bytes | None] = [None] * told["width"]
    for token, piece in told["pieces"].items():
        pieces[int(token)] = bytes.fromhex(piece)
    return Tokens(pieces, told["special"], told["eos"], told["width"])


def _tried(grammar: str, tokens: Tokens) -> dict[str, str]:
    """Compile a grammar in a fork and return the outcome."""
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
        outcome: dict[str, str] = json.loads(said)
        return outcome
    if not there:
        return {"ended": "clock"}
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
    return {"ended": "time" if late else "memory"}


def _compile(grammar: str, tokens: Tokens, out: int) -> None:
    """Compile in a fork, say how it went, and end the fork."""
    try:
        signal.setitimer(signal.ITIMER_PROF, TIME)  # which ends the process
        most = addresses() + MEMORY
        limit(RLIMIT_AS=most)
        before = resident()
        try:
            made = new_matcher(unforced(grammar), tokens.tokenizer)
            made.compute_bitmask()
            outcome = {"fits": str(max(0, resident() - before))}
        except UserError as error:
            outcome = {"refused": str(error)[:1000]}
        os.write(out, json.dumps(outcome).encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
