"""Serves heads of a folder, and replaces them by newer ones that prove themselves, without a restart.

A thread loads the newest file beside the heads in force. A part of the texts that then begin has the newer
heads, drawn at random, and a sequential test compares the texts (`Canary`). What decides is a text's share of
guesses whose first candidate was the target's choice: whether deeper levels are asked for depends on the
heads themselves. A text keeps its heads to its end, so it is not read anew; those of heads that were rolled
back get the others at once, and one that was silent for `FORGET_EVERY` steps is drawn again. Texts are the
target's with all heads.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cloud_verifier.core.engine_protocol import Followers, GuessItem, GuessPlan, GuessResult, IntArray
from cloud_verifier.engine.attention.backend import KVStore
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.torch_engine import TorchEngine
from common.errors import ForerunError, LocalError, UserError
from common.llama.load_trial import KeptTable
from edge_client.draft.canary import VERDICTS, Canary, Verdict, Verdicts
from edge_client.draft.updated_draft import newest
from schemes.drafters.drafter import Drafter, DraftModel

logger = logging.getLogger(__name__)

LOOK_EVERY = 60.0
"""Seconds between two looks for a newer file."""

COUNTED, LONGEST = 8, 64
"""Guesses after which a text is judged, and tokens after which it is judged by fewer: bad heads are asked
rarely."""

FORGET_EVERY = 256
"""Steps without a text after which it counts as ended."""

SUFFIX = ".safetensors"


class NewerHeads:
    """Loads the heads of a folder (an `OwnDraft`). Raises `UserError` if the first cannot be used.

    Args: folder; load: reads a file of heads, or raises `UserError`.
    """

    def __init__(self, folder: Path, load: Callable[[Path], DraftModel]) -> None:
        self.folder, self._load = folder, load
        self.verdicts = Verdicts(KeptTable(folder / VERDICTS))
        self.path = self.verdicts.last_kept() or newest(str(folder), "", SUFFIX, self._is_worse)[0]
        if not self.path:
            raise UserError(
                f"--drafter heads:{folder} has no heads that were not rolled back; train some: forerun heads "
                f"train --out {folder / 'first'}{SUFFIX}"
            )
        self.first = load(Path(self.path))
        self.verdicts.keep(self.path, Verdict.KEPT)  # a restart finds it, not what was never tried
        self.depth, self.has_own_kv = self.first.depth, self.first.has_own_kv
        self.num_scratch, self.first_position = self.first.num_scratch, self.first.first_position

    def beside(self, engine: TorchEngine) -> HeadsInTrial:
        return HeadsInTrial(self, engine)

    def newer(self, path: str) -> DraftModel | None:
        """Return the heads of a file that was not rolled back before. Raise `ForerunError`."""
        if self._is_worse(path):
            return None
        heads = self._load(Path(path))
        if type(heads) is not type(self.first):
            raise UserError("the heads are of another kind; start the verifier anew with them")
        return heads

    def _is_worse(self, path: str) -> bool:
        return self.verdicts.of(path) is Verdict.WORSE


@dataclass(eq=False, slots=True)
class ServedHeads:
    """Holds heads that serve."""

    path: str
    drafter: Drafter


@dataclass(slots=True)
class ServedText:
    """Holds a text that is guessed for."""

    heads: ServedHeads
    trial: Canary | None  # that it counts for, and has not counted for yet
    seen_at: int  # number of a step
    begin: int = 0  # position of its tip at the first guess
    asked_at: int = -1  # position of its tip at the last guess
    best: int = -1  # first candidate after it; -1: what followed is known, or nothing was guessed
    num_guesses: int = 0
    num_right: int = 0

    def expect(self, item: GuessItem, guessed: tuple[Followers, ...]) -> None:
        """Note a guess."""
        if guessed and guessed[0].tokens:
            self.asked_at, self.best = len(item.prefix_slots), guessed[0].tokens[0]
            self.begin = self.begin or self.asked_at

    def learn(self, tokens: IntArray, prefix: IntArray, tip: int = -1) -> bool:
        """Learn what followed the last guess, and return whether the text can be judged.

        Args: tokens by slot; prefix: slots of the evaluated text; tip: the token behind it, -1 if unknown.
        """
        place = self.asked_at + 1
        written = int(tokens[prefix[place]]) if place < len(prefix) else tip if place == len(prefix) else -1
        if self.best >= 0 and written >= 0:
            self.num_guesses, self.num_right = self.num_guesses + 1, self.num_right + (written == self.best)
            self.best = -1
        return self.num_guesses >= COUNTED or (self.num_guesses > 0 and len(prefix) - self.begin >= LONGEST)


class HeadsInTrial:
    """Guesses by the heads in force, and by newer ones on trial (an `EngineDrafter`).

    Args: draft; engine; chance: draws from [0, 1) whether a text has the newer heads.
    """

    def __init__(
        self, draft: NewerHeads, engine: TorchEngine, chance: Callable[[], float] = random.random
    ) -> None:
        self._draft, self._chance = draft, chance
        self.current = ServedHeads(draft.path, Drafter(draft.first, engine))
        self.other: ServedHeads | None = None  # on trial, or in force before, until its last text has ended
        self.trial: Canary | None = None
        own = self.current.drafter.kv
        self._stores = [own, KVStore(own.num_slots) if draft.has_own_kv else own]
        self._texts = dict[int, ServedText]()  # by session
        self._num_steps = 0
        path, mark = newest(str(draft.folder), "", SUFFIX)
        self._seen = mark if path == draft.path else None
        self._look_at = time.monotonic() + LOOK_EVERY
        self._thread: threading.Thread | None = None
        self._loaded: ServedHeads | None = None  # by the thread

    @property
    def slot_bytes(self) -> int:
        other = self._stores[1].slot_bytes if self._draft.has_own_kv else 0
        return self.current.drafter.slot_bytes + other

    def take_memory(self) -> None:
        """Allocate the KV of both."""
        for store in self._stores:
            self._sibling(self._draft.first, store).take_memory()

    def note(self, step: PackedStep) -> None:
        self._num_steps += 1
        if self.other is None:
            self._try_newer()
        tokens = self.current.drafter.tokens
        for item in step.items:
            if (text := self._texts.get(item.session)) is not None:
                text.seen_at = self._num_steps
                if text.trial and text.learn(tokens, item.prefix_slots):
                    self._judge(text)
        if self._num_steps % FORGET_EVERY == 0:
            self._forget()
        for heads in self._serving():
            heads.drafter.note(step)

    def guess(self, plan: GuessPlan) -> GuessResult:
        texts = [self._text(item) for item in plan.items]
        guesses, num_read = [tuple[Followers, ...]()] * len(texts), 0
        for heads in self._serving():
            places = [place for place, text in enumerate(texts) if text.heads is heads]
            if not places:
                continue
            items = tuple(plan.items[place] for place in places)
            try:
                result = heads.drafter.guess(GuessPlan(items, plan.least_gain * len(items) / len(texts)))
            except LocalError as error:  # logits that are no numbers
                if heads is not self.other or self.trial is None:
                    raise
                self._end(Verdict.WORSE, str(error))
                continue
            num_read += result.num_read
            for place, own in zip(places, result.guesses, strict=True):
                guesses[place] = own
                texts[place].expect(plan.items[place], own)
        return GuessResult(tuple(guesses), num_read)

    def _serving(self) -> list[ServedHeads]:
        return [self.current] if self.other is None else [self.current, self.other]

    def _text(self, item: GuessItem) -> ServedText:
        """Return a session's text, with what followed its last guess."""
        text = self._texts.get(item.session)
        if text is None:
            is_new = self.trial is not None and self.trial.serves(self._chance())
            heads = self.other if is_new and self.other is not None else self.current
            text = self._texts[item.session] = ServedText(heads, self.trial, self._num_steps)
        elif text.heads not in self._serving():
            text.heads = self.current
        elif text.trial and text.learn(self.current.drafter.tokens, item.prefix_slots, item.tip):
            self._judge(text)
        return text

    # --- newer heads ------------------------------------------------------------------------------------

    def _try_newer(self) -> None:
        """Begin a trial of heads that were loaded. Have the thread look for some."""
        if (loaded := self._loaded) is not None:
            self._loaded, self.other, self.trial = None, loaded, Canary()
            logger.info("> %s is tried on a part of the texts", loaded.path)
        elif time.monotonic() >= self._look_at and not (self._thread and self._thread.is_alive()):
            self._look_at = time.monotonic() + LOOK_EVERY
            self._thread = threading.Thread(target=self._look, name="newer heads", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        """Load the newest file, if it was not seen before. Runs in the thread. After an error that may
        pass, as of memory, the file is not seen."""
        path = ""
        try:
            path, mark = newest(str(self._draft.folder), "", SUFFIX)
            if not path or mark == self._seen:
                return
            self._seen = mark
            if (heads := self._draft.newer(path)) is not None:
                kv = self.current.drafter.kv
                spare = self._stores[self._stores[0] is kv]
                self._loaded = ServedHeads(path, self._sibling(heads, spare))
        except Exception as error:  # noqa: BLE001 - outermost frame of the thread
            self._seen = self._seen if isinstance(error, ForerunError) else None
            logger.warning("! %s is not used, %s stays: %s", path, self.current.path, error)

    def _sibling(self, heads: DraftModel, kv: KVStore) -> Drafter:
        return self.current.drafter.sibling(heads, kv)

    def _judge(self, text: ServedText) -> None:
        """Let a text count for its trial."""
        trial, text.trial = text.trial, None
        if trial is None or trial is not self.trial:
            return
        verdict = trial.add(text.num_right / text.num_guesses, is_new=text.heads is self.other)
        if verdict is not Verdict.OPEN:
            before, new = trial.means
            self._end(verdict, f"the first guess was right in {new:.3f} of cases, and in {before:.3f} before")

    def _end(self, verdict: Verdict, reason: str) -> None:
        """End the trial."""
        assert self.other is not None, "on trial"
        newer, self.trial = self.other, None
        logger.warning("! %s was %s: %s", newer.path, verdict.value, reason)
        verdicts = {newer.path: verdict}
        if verdict is Verdict.KEPT:
            self.current, self.other = newer, self.current
        else:
            self.other = None
            verdicts[self.current.path] = Verdict.KEPT
        threading.Thread(target=self._keep, args=(verdicts,), name="verdict").start()

    def _keep(self, verdicts: dict[str, Verdict]) -> None:
        """Keep verdicts, so that a restart knows them."""
        for path, verdict in verdicts.items():
            with contextlib.suppress(UserError):  # the file is gone
                self._draft.verdicts.keep(path, verdict)

    def _forget(self) -> None:
        """Forget texts that have ended, and heads that no text has."""
        least = self._num_steps - FORGET_EVERY
        self._texts = {session: text for session, text in self._texts.items() if text.seen_at > least}
        if self.trial is None and all(text.heads is not self.other for text in self._texts.values()):
            self.other = None
