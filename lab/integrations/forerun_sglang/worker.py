"""The speculative algorithm of SGLang that verifies trees of edges, and makes Forerun's choices."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from torch.distributed import broadcast_object_list

from forerun_beside.drafts import TAIL, key_in
from forerun_beside.mailbox import Mailbox, path_of
from forerun_sglang.rows import PARAMETER, Text, Tree, choose_in, read


class ForerunWorker(NGRAMWorker):  # type: ignore[misc]  # SGLang may be missing where types are checked
    """Verifies the tree of an edge where there is one, and n-grams of SGLang's corpus elsewhere.

    `NGRAMWorker` runs the step, walks the tree and moves the accepted KV. Two things differ: the draft
    tokens, and the logits of Forerun's requests, which the engine decodes greedily.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._group = get_parallel().tp_group
        self._mailbox = Mailbox(path_of(os.environ) if self._group.rank_in_group == 0 else None)
        self._texts: list[Text | None] = []  # of the running batch; empty between batches
        self._trees: list[Tree] | None = None  # if it decodes
        self.model_runner.forward = partial(self._forward, self.model_runner.forward)

    def forward_batch_generation(self, batch: Any, *args: Any, **named: Any) -> Any:
        self._texts, self._trees = [_text(req, []) for req in batch.reqs], None
        try:
            return super().forward_batch_generation(batch, *args, **named)
        finally:
            self._texts = []

    def _prepare_draft_tokens(self, batch: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tokens [B * n] and masks [B * n * n], the edges' in place of the corpus's."""
        num_rows = self.draft_token_num
        prepared = super()._prepare_draft_tokens(batch)
        tokens, masks = prepared[0].reshape(-1, num_rows), prepared[1].reshape(-1, num_rows, num_rows)
        self._mailbox.keep(self._shared(self._mailbox.take()))
        for at, req in enumerate(batch.reqs):
            # With overlapped schedules the newest tokens are not in `output_ids` yet.
            fresh = (
                self.prev_token_ids[at * num_rows :][: self.prev_accept_lens[at]]
                if self.prev_token_ids
                else []
            )
            self._texts[at] = _text(req, fresh)
            written = [*req.output_ids[-TAIL:], *fresh]
            length = len(req.origin_input_ids_unpadded) + len(req.output_ids) + len(fresh)
            drafts = self._mailbox.drafts(key_in(req.rid) or "", length - len(written), written)
            if drafts is not None:
                tokens[at], masks[at] = drafts.rows(int(tokens[at, 0]), num_rows)
        self._trees = list(zip(tokens, masks, strict=True))
        return tokens.reshape(-1), masks.reshape(-1)

    def _shared(self, messages: list[bytes]) -> list[bytes]:
        """Return the messages that the first rank has received: all ranks must verify the same tree."""
        if self._group.world_size == 1:
            return messages
        shared = [messages]
        broadcast_object_list(shared, src=self._group.first_rank, group=self._group.cpu_group)
        return shared[0]

    def _forward(self, forward: Any, *args: Any, **named: Any) -> Any:
        """Run the model, and choose before the engine looks at the logits."""
        out = forward(*args, **named)
        if self._texts:
            choose_in(out.logits_output.next_token_logits, self._texts, self._trees)
        return out


def _text(req: Any, fresh: list[int]) -> Text | None:
    custom = req.sampling_params.custom_params
    text = read(custom[PARAMETER]) if custom and PARAMETER in custom else None
    return None if text is None else Text((req.origin_input_ids_unpadded, req.output_ids, fresh), *text)
