"""Updates an index of a user's files in a process of low priority, beside a daemon that drafts.

    python -m edge_client.texts.index_child MODEL INDEX

Tokens are read from the file MODEL, which the daemon has loaded before.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from common.child import die_first
from common.errors import UserError
from common.vocabulary import Vocabulary
from edge_client.texts.datastore import read, update

COURTESY = 10
"""Added to the niceness: drafts come first."""


async def renew_in_child(model: str, path: Path) -> None:
    """Update the index `path` from the roots that it names. Raises `UserError` that says why it failed."""
    command = [sys.executable, "-m", __name__, model, str(path)]
    child = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE)
    try:
        _, told = await child.communicate()
    except asyncio.CancelledError:
        child.kill()
        await child.wait()
        raise
    if child.returncode:
        lines = told.decode(errors="replace").strip().splitlines()
        raise UserError(lines[-1] if lines else f"the update ended with {child.returncode}")


def main(model: str, path: Path) -> None:
    from common.llama.model import LlamaModel, LlamaSettings

    die_first()
    if hasattr(os, "nice"):
        os.nice(COURTESY)
    with LlamaModel(LlamaSettings(model), weights=False) as words:
        update(path, read(path).roots, words, Vocabulary(words.token_table()).fingerprint)


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except UserError as error:
        sys.exit(str(error))
