"""The proposer of vLLM (`method: custom_class`) whose drafts come from edges."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.distributed.parallel_state import get_tp_group

from forerun_beside.drafts import TAIL, key_in
from forerun_beside.mailbox import Mailbox, path_of


class EdgeProposer:
    """Proposes what edges have sent by the time of each step: the likeliest path of each tree.

    vLLM makes one in each process of the last pipeline stage, and takes the drafts of the first rank alone.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.request_ids: list[str] = []  # of the batch, in its order
        self._most_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._most_positions = int(vllm_config.model_config.max_model_len)
        self._mailbox = Mailbox(path_of(os.environ) if get_tp_group().rank_in_group == 0 else None)
        _pass_request_ids()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return a chain for each request of the batch, empty for one that reads its prompt.

        Args: sampled_token_ids, of the step that has ended; num_tokens_no_spec [B], the tokens of each
        request with those; token_ids_cpu [B, L], the tokens; slot_mappings, unused.
        """
        self._mailbox.keep(self._mailbox.take())
        return [
            self._chain(request_id, token_ids_cpu[row, : num_tokens_no_spec[row]]) if sampled else []
            for row, (request_id, sampled) in enumerate(
                zip(self.request_ids, sampled_token_ids, strict=False)
            )
        ]

    def _chain(self, request_id: str, text: NDArray[np.int32]) -> list[int]:
        written = text[-TAIL:].tolist()
        drafts = self._mailbox.drafts(key_in(request_id) or "", len(text) - len(written), written)
        most = min(self._most_tokens, self._most_positions - len(text))
        return [] if drafts is None else drafts.chain(most)


def _pass_request_ids() -> None:
    """Give each proposer the batch's request ids, which vLLM 0.33 does not pass to `propose`."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    plain = GPUModelRunner.propose_draft_token_ids
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def propose_draft_token_ids(self: Any, *args: Any, **named: Any) -> Any:
        if isinstance(self.drafter, EdgeProposer):
            self.drafter.request_ids = list(self.input_batch.req_ids)
        return plain(self, *args, **named)

    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids
