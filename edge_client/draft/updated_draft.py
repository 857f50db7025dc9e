"""Serves texts by a draft model, and replaces it by a newer one that proves itself, without a restart.

A newer draft is a GGUF file of the same tokens, or an adapter (LoRA) of the configured model. It lies in a
folder, of which the newest file is taken, or on the hub, and a fleet may name the file. Another process tries
it. Then it is loaded beside the model in force, which goes on meanwhile, and a part of the texts has it
(`Canary`). A text keeps its draft model to its end. So no text waits for a change, and no KV of one model is
read by another. Texts are the target's with every draft, so a change costs speed at worst.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import ForerunError, UserError
from common.llama.files import find_model, is_remote
from common.llama.load_trial import KeptTable, mark_of
from edge_client.draft.canary import Canary, Verdict, Verdicts
from edge_client.draft.shared_model import SharedDraftModel

logger = logging.getLogger(__name__)

LOOK_EVERY = 60.0
"""Seconds between two looks for a newer draft."""

LEAST = 8
"""Choices of the target below a draft that make a text's acceptance count."""

HEAD = 1 << 16  # bytes; an adapter's metadata are shorter
IS_ADAPTER = b"general.type" + struct.pack("<IQ", 8, 7) + b"adapter"
"""Key, gguf_type of a string, its length, and the string."""


class UpdatedDraft:
    """Owns a pair's draft models, from `start` (without it nothing is replaced) to `close`.

    Args: configured: the owner's model, which serves until a newer one is kept. place: a folder or
    hf://organisation/repository. verdicts: keeps which files stayed and which were rolled back.
    """

    def __init__(
        self,
        configured: SharedDraftModel,
        place: str = "",
        verdicts: KeptTable | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.current = self._configured = configured
        self.models = [configured]  # all that were in force or tried
        self.wanted = ""  # NAME or NAME#SHA256 of a file in the place; empty: the newest
        self.last = ""  # the end of the last trial, in words
        self._place, self._chance = place, chance
        self._verdicts = Verdicts(verdicts or KeptTable(None), place=place, instead_of=configured.path)
        self._newer: SharedDraftModel | None = None  # on trial
        self._canary = Canary()
        self._seen: tuple[str, object] | None = None  # file and mark that were looked at last
        self._task: asyncio.Task[None] | None = None

    # --- texts ------------------------------------------------------------------------------------------

    def choose(self, *, alone: bool = False) -> SharedDraftModel:
        """Return the draft model of a text that begins. If the draft writes `alone`, it is that in force."""
        newer = None if alone else self._newer
        return newer if newer is not None and self._canary.serves(self._chance()) else self.current

    def judge(self, model: object, num_best: int, num_observed: int) -> None:
        """Take a text that has ended. `num_best` of `num_observed` choices of the target were the draft's."""
        newer = self._newer
        if newer is None or model not in (newer, self.current) or num_observed < LEAST:
            return
        verdict = self._canary.add(num_best / num_observed, is_new=model is newer)
        if verdict is not Verdict.OPEN:
            self._newer = None
            before, new = self._canary.means
            self._tell(f"{newer.file} was {verdict.value}: acceptance {new:.3f}, and {before:.3f} before")
            asyncio.get_running_loop().run_in_executor(None, self._verdicts.keep, newer.file, verdict)
            if verdict is Verdict.KEPT:
                self._use(newer)
            else:
                newer.keep_alive = 0.0

    @property
    def keep_alive(self) -> float:
        """Idle seconds until the model in force is unloaded. May be set at any time."""
        return self.current.keep_alive

    @keep_alive.setter
    def keep_alive(self, seconds: float) -> None:
        for model in filter(None, (self.current, self._newer)):
            model.keep_alive = seconds

    def status(self) -> dict[str, Any]:
        """Return what the status page shows of newer drafts; empty before the first."""
        trial = dict[str, Any]()
        if self._newer is not None:
            before, new = (round(mean, 3) for mean in self._canary.means)
            num_before, num_new = self._canary.num_texts
            trial = {"file": self._newer.file, "texts": num_new, "acceptance": new}
            trial |= {"texts_before": num_before, "acceptance_before": before}
        return {name: value for name, value in (("trial", trial), ("last_trial", self.last)) if value}

    # --- newer drafts -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look for newer drafts, if there is a place for them."""
        if self._place and self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Unload all models; see `SharedDraftModel.close`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for model in reversed(self.models):  # the first owns the tokens
            await model.close()

    async def _run(self) -> None:
        if path := await asyncio.to_thread(self._verdicts.last_kept):
            await self._look_at(path, canary=False)
        while True:
            await self._look()
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self) -> None:
        """Try a draft that was not seen before. Go back to the configured one if that in force is gone."""
        is_there = await asyncio.to_thread(os.path.exists, self.current.file)
        if not is_there and self.current is not self._configured:
            self._tell(f"{self.current.file} was withdrawn")
            self._use(self._configured)
        try:
            path, mark = await asyncio.to_thread(newest, self._place, self.wanted)
        except ForerunError as error:
            path, mark = "", str(error)
            if self._seen != (path, mark):
                self._tell(str(error))
        if self._seen == (path, mark):
            return
        self._seen = path, mark
        if self._newer is not None:
            self._tell(f"the trial of {self._newer.file} was ended, because another draft is offered")
            self._newer.keep_alive, self._newer = 0.0, None
        if path and path != self._configured.path:
            await self._look_at(path, canary=True)

    async def _look_at(self, path: str, *, canary: bool) -> None:
        """Load a newer draft beside the one in force. Refuse it, with a reason, if that fails."""
        try:
            sha256 = self.wanted.partition("#")[2] if canary else ""
            newer = await asyncio.to_thread(self._made, path, sha256)
            if newer is None:
                return
            newer.keep_alive = self.keep_alive
            self.models.append(newer)
            await newer.load()
        except (ForerunError, OSError) as error:
            self._tell(f"{path} is not used, {self.current.file} stays: {error}")
            return
        if canary:
            logger.info("> %s is tried on a tenth of the texts", path)
            self._canary, self._newer = Canary(), newer
        else:
            self._use(newer)

    def _made(self, path: str, sha256: str) -> SharedDraftModel | None:
        """Return a model that has passed its trial; None if it was rolled back before, or is in force. Raise
        `ForerunError` or `OSError`."""
        known = self._verdicts.of(path)
        if known is Verdict.WORSE or (known is Verdict.KEPT and path == self.current.file):
            return None
        find_model(path, sha256)
        with open(path, "rb") as file:
            is_adapter = IS_ADAPTER in file.read(HEAD)
        return self._configured.sibling(**{"adapter" if is_adapter else "path": path})

    def _use(self, model: SharedDraftModel) -> None:
        """Let texts that begin from now on have this model."""
        model.keep_alive, self.current.keep_alive = self.keep_alive, 0.0  # unloaded when its last text ends
        self.current = model

    def _tell(self, words: str) -> None:
        self.last = words
        logger.warning("! %s", words)


def newest(
    place: str, wanted: str, suffix: str = ".gguf", refused: Callable[[str], bool] = lambda _path: False
) -> tuple[str, object]:
    """Return the file that a place offers, with a mark of its content; ("", None) if there is none.

    `wanted` is NAME or NAME#SHA256; empty: the newest file with the suffix in a folder that is not
    `refused`. Raise `ForerunError` for a missing one.
    """
    name = wanted.partition("#")[0]
    if is_remote(place):
        return (find_model(f"{place.rstrip('/')}/{name}"), wanted) if name else ("", None)
    folder = Path(place).expanduser()
    try:
        files = [folder / name] if name else folder.glob(f"[!.]*{suffix}")
        by_age = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)
        path = next((file for file in by_age if name or not refused(str(file.absolute()))), None)
        return (str(path.absolute()), (wanted, mark_of(path))) if path else ("", None)
    except OSError as error:
        raise UserError(f"no newer draft can be read in {place}: {error.strerror or error}") from error
