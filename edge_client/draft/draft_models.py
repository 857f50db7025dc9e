"""Opens the draft models of all pairs, and unloads idle ones when another needs their memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from common.child import available_memory
from common.llama.load_trial import KeptTable, ModelTrials
from common.llama.model import LlamaModel, LlamaSettings
from common.vocabulary import Vocabulary
from edge_client.draft.shared_model import MEMORY, OtherModel, SharedDraftModel
from edge_client.draft.updated_draft import UpdatedDraft
from edge_client.process.paths import EdgePaths

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """Holds the target's tokens, which stay in memory, and the draft model."""

    words: LlamaModel  # the draft file's, or those of a file of the target's tokens
    vocabulary: Vocabulary  # of `words`
    model: UpdatedDraft | None  # None: only the tokens are used


class DraftModels:
    """Opens draft models; pairs with the same file and settings share one. `stack` closes them.

    Before a model is loaded with too little free memory, idle models are unloaded, but none that is kept for
    ever. `available` returns the bytes of free memory; 0 where they are unknown.
    """

    def __init__(
        self, paths: EdgePaths, stack: AsyncExitStack, available: Callable[[], int] | None = None
    ) -> None:
        self._trials, self._verdicts = ModelTrials(paths.tried), KeptTable(paths.state / "updates.json")
        self._stack = stack
        self._available = available or available_memory
        self._opened: dict[tuple[object, ...], OpenedDraft] = {}

    def open(
        self,
        settings: LlamaSettings,
        *,
        drafting: bool,
        seats: int,
        keep_alive: float,
        other: OtherModel | None = None,
        tokens: LlamaSettings | None = None,
        updates: str = "",
    ) -> OpenedDraft:
        """Open the tokens and, if `drafting`, the draft model, whose weights are loaded when they are needed.

        `other` drafts together with it; newer ones come from `updates`. `tokens` is a file with the target's
        tokens; None: the draft's are the target's. Another process tries each file first.
        Raises `UserError` for an unloadable file.
        """
        key = settings, other, tokens, drafting, seats, keep_alive, updates
        if key not in self._opened:
            logger.info("> reading the tokens of %s", (tokens or settings).path)
            model, words = None, None
            if tokens is not None or not drafting:
                self._trials.ensure(tokens or settings, weights=False)
                words = self._stack.enter_context(LlamaModel(tokens or settings, weights=False))
            if drafting:
                shared = settings, seats, keep_alive, self._trials, self._make_room, other
                own = SharedDraftModel(*shared, target=words)
                model, words = UpdatedDraft(own, updates, self._verdicts), words or own.tokens
                self._stack.push_async_callback(model.close)
            assert words is not None, "opened here, or by the model"
            self._opened[key] = OpenedDraft(words, Vocabulary(words.token_table()), model)
        return self._opened[key]

    async def _make_room(self, settings: LlamaSettings, size: int) -> None:
        """Unload idle models until one of `size` bytes fits, those first that would be unloaded first.

        The free memory of an accelerator is unknown, so a model that goes there needs all idle ones away.
        """
        needed = math.inf if settings.gpu_layers else MEMORY * size
        opened = [each.model for each in self._opened.values() if each.model is not None]
        models = [each for model in opened for each in model.models]
        idle = {model: left for model in models if (left := model.seconds_left) is not None}
        for model in sorted(idle, key=idle.__getitem__):
            if self._available() >= needed:
                return
            await model.unload()
