"""The state file: revisions, orders that stand and commands that came, over restarts."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from common.errors import UserError
from edge_client.core.fleet.memory import MAX_SIZE, Memory
from edge_client.core.fleet.record import SchemaError

NAME = "fleet.json"


class StateFile:
    """In the daemon's state directory. Blocks: called from a thread, since an SD card takes its time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def load(self) -> Memory:
        """What was saved last; a new memory if nothing was. Raises `UserError` for a damaged file."""
        try:
            with self.path.open("rb") as file:
                return Memory.from_bytes(file.read(MAX_SIZE + 1))
        except FileNotFoundError:
            return Memory()
        except OSError as error:
            raise UserError(f"the fleet's state {self.path} cannot be read: {error.strerror}") from error
        except SchemaError as error:
            raise UserError(
                f"the fleet's state {self.path} is damaged: {error}. Without it old orders could be played "
                "again; if nothing else has it, delete it"
            ) from error

    def save(self, memory: Memory) -> None:
        """In full or not at all. Raises `UserError`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=NAME)  # of mode 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(memory.to_bytes())
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self.path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise UserError(
                f"the fleet's state {self.path} cannot be written: {error.strerror}; after a restart old "
                "orders could be played again"
            ) from error
