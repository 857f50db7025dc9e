"""Implements `forerun local`: a target and its draft on one machine."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE
from typing import Any

from common.child import available_memory
from common.config.command_line import add_command, add_options, read_options
from common.config.merge import DEFAULT
from common.config.setting import REQUIRED, setting
from common.errors import UnavailableError, UserError
from common.llama.files import find_model, is_gguf, size_of
from forerun.cli import leave, main
from forerun.commands import edge
from forerun.options import loaded, places
from forerun.terminal import note

DESCRIPTION = """\
Run a large target model and a small draft model on this machine. The target runs as `forerun verify` in a
process of its own, and this process serves the API of `forerun edge`, whose options all hold here. A GGUF
target may be larger than memory: its file is mapped, and one reading of it verifies several tokens. The draft
has a quarter of the processors, or --threads N, and the target has the others.

  forerun local --draft small.gguf --target big.gguf
  forerun chat"""

LEAVING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ADDRESSES, THREADS, POLICY = "verifier.addresses", "draft.threads", "draft.policy"
FOR_LITTLE_MEMORY = "pacer:step=1"
"""Policy for a target that exceeds memory: a step takes the time of its reading, whatever its rows, and the
draft rests meanwhile, so that it drives no pages out (LLMCad's stop; figures in lab/docs/growth.md)."""
END_TIMEOUT = 10.0  # seconds for the target's process to end
LONGEST_LINE = 65_536  # bytes of what it announces


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Declares the target."""

    target: str = setting(REQUIRED, "target: GGUF file, hf://..., folder or hub id", "MODEL")
    verify: str = setting("", "options of `forerun verify`, as one word: --verify='--slots 8192'", "OPTIONS")


def add_parser(commands: Any) -> None:
    words = "run a target and its draft on this machine, and serve the API of `forerun edge`"
    parser = add_command(commands, "local", words, description=DESCRIPTION)
    add_options(parser, LocalOptions)
    edge.add_all_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run both until SIGTERM or Ctrl-C, or until the target's process ends."""
    from common.llama.runtime import default_threads

    own, paths = read_options(options, LocalOptions), places(options)
    if hasattr(options, ADDRESSES):
        raise UserError("forerun local has its own verifier; leave --verifier out, or run forerun edge")
    known = loaded(options, paths)
    config = known.config
    draft = edge.draft_files("", config, paths).model  # checked before the target is loaded
    if known.origins[POLICY].layer == DEFAULT and exceed_memory(own.target, draft):
        note(f"{own.target} exceeds free memory and is read for each step; so --policy {FOR_LITTLE_MEMORY}")
        setattr(options, POLICY, FOR_LITTLE_MEMORY)
    processors = default_threads() + 1
    threads = config.draft.threads or max(1, processors // 4)
    setattr(options, THREADS, threads)
    try:
        more = shlex.split(own.verify)
    except ValueError as error:
        raise UserError(f"--verify {own.verify!r} has no end of a quotation; write it in one pair") from error
    note(f"loading the target {own.target}")
    more = ["--threads", str(max(1, processors - threads)), *more]
    with target_process(own.target, more) as address:
        setattr(options, ADDRESSES, [address])
        return edge.run(options)


def exceed_memory(target: str, draft: str) -> bool:
    """Return whether a GGUF target, fetched first if it is remote, and its draft need more than free memory.
    An accelerator has memory of its own. Raises as `find_model`."""
    from common.llama.library import offloaded_layers

    if not is_gguf(target) or offloaded_layers(None):
        return False
    return 0 < available_memory() < size_of(find_model(target)) + size_of(draft)


@contextmanager
def target_process(target: str, more: Sequence[str]) -> Iterator[str]:
    """Serve the target at a free port of this machine until the block ends. Yield the address. Raises
    `UserError` or `UnavailableError` if it does not start, and the latter after the block if it has ended.

    Args: more: further options of `forerun verify`.
    """
    words = ["verify", "--model", target, "--listen", "127.0.0.1:0", "--json", "--grace", "0", *more]
    command = [sys.executable, "-m", __name__, *words]
    is_left = threading.Event()
    for each in LEAVING:  # held back until the process is in hand
        signal.signal(each, lambda *_: is_left.set())
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True) as child:
        is_over = threading.Event()
        try:
            for each in LEAVING:
                signal.signal(each, leave)
            if is_left.is_set():
                leave(signal.SIGTERM)
            assert child.stdout is not None, "a pipe"
            line = child.stdout.readline(LONGEST_LINE)
            if not line:
                error = UserError if child.wait() == 2 else UnavailableError
                raise error(f"the target {target} was not loaded; its message is above")
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Thread(target=_end_with, args=(child, is_over), daemon=True).start()
            try:
                yield json.loads(line)["listening"]
            except SystemExit:  # of `leave`, before the daemon takes the signals
                if child.poll() is None:
                    raise
            if child.poll() is not None:
                raise UnavailableError(f"the target's process ended with code {child.returncode}")
        finally:
            is_over.set()
            child.terminate()
            try:
                child.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.kill()


def _end_with(child: subprocess.Popen[str], is_over: threading.Event) -> None:
    """End this process as two SIGTERM do when the target's process ends by itself: its texts cannot go on."""
    child.wait()
    for _ in range(2):
        if not is_over.wait(0.5):
            os.kill(os.getpid(), signal.SIGTERM)


def _end_with_parent() -> None:
    """End the target's process when its standard input ends: the parent has ended, even if it was killed."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":  # the target's process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main())
