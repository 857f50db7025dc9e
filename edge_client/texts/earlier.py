"""Keep the newest tokens of this device's texts for lookup, over restarts too if the user wants that.

The file is an index (`edge_client.texts.index_file`), its owner's alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from common.errors import UserError
from common.suffix_index import GrowingIndex
from edge_client.texts.index_file import read_index, write_index

logger = logging.getLogger(__name__)

SAVE_AFTER = 600.0
"""Seconds of texts that a crash may lose. Writing 262,144 tokens (2.2 MB) takes a thread some 20 ms."""


class EarlierTexts:
    """Holds the texts of one vocabulary. Call `text_ended` after each text, and `close` in the end.

    Args: capacity, tokens; path, of the file; None: in memory alone; fingerprint, of the token table. A file
    that cannot be used is no error: the log says why, and later texts replace it.
    """

    def __init__(
        self,
        capacity: int,
        path: Path | None = None,
        fingerprint: bytes = b"",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._fingerprint, self._clock = path, fingerprint, clock
        self._is_saved = True
        self._saved_at = clock()
        self._saving: asyncio.Task[None] | None = None
        self.index = self._read(capacity) or GrowingIndex(capacity=capacity)

    def text_ended(self) -> None:
        """Begin to save the texts if the last time is long ago."""
        self._is_saved = False
        is_busy = self._saving is not None and not self._saving.done()
        if self._path is not None and not is_busy and self._clock() >= self._saved_at + SAVE_AFTER:
            self._saving = asyncio.create_task(self._save(self._path))

    async def close(self) -> None:
        """Save the texts since the last time."""
        if self._saving is not None:
            await self._saving
        if self._path is not None and not self._is_saved:
            await self._save(self._path)

    def _read(self, capacity: int) -> GrowingIndex | None:
        path = self._path
        if path is None or not path.exists():
            return None
        try:
            file = read_index(path)
        except UserError as error:
            logger.warning("! the earlier texts in %s are not used: %s", path, error.__cause__ or error)
            return None
        if file.fingerprint != self._fingerprint:
            words = "! the earlier texts in %s are of another tokenizer than the draft model's and not used"
            logger.warning(words, path)
            return None
        index = GrowingIndex.copy_of(file.index, capacity)
        logger.info("earlier texts: %d tokens from %s", len(index), path)
        return index

    async def _save(self, path: Path) -> None:
        text, order = self.index.snapshot()
        self._is_saved, self._saved_at = True, self._clock()
        try:
            await asyncio.to_thread(write_index, path, self._fingerprint, text, order)
        except UserError as error:
            logger.warning("! the earlier texts are in memory alone: %s", error)
