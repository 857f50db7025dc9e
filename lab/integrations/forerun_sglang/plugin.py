"""Register Forerun's algorithm with SGLang. The entry point runs in each of its processes."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

NAME = "FORERUN"
DEFAULT_ROWS = 8  # nodes of a request in a step, its tip included; each is computed, also without drafts


class ForerunAlgo(CustomSpecAlgo):  # type: ignore[misc]  # SGLang may be missing where types are checked
    """Takes the ways of n-gram speculation: masks of trees, and CUDA graphs of their verification."""

    def is_ngram(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        return False

    def handle_server_args(self, server_args: Any) -> None:
        """Set what SGLang sets for n-grams, and raise `ValueError` for what those cannot run with either."""
        server_args.enable_mixed_chunk = False
        server_args.speculative_eagle_topk = server_args.speculative_ngram_max_bfs_breadth
        if server_args.speculative_num_draft_tokens is None:
            server_args.speculative_num_draft_tokens = DEFAULT_ROWS
        if server_args.speculative_num_steps is None:
            server_args.speculative_num_steps = server_args.speculative_num_draft_tokens
        if server_args.max_running_requests is None:
            server_args.max_running_requests = 48  # as for n-grams
        if server_args.page_size > 1 and server_args.attention_backend != "flashinfer":
            raise ValueError(
                f"FORERUN verifies trees, for which --page-size {server_args.page_size} needs "
                "--attention-backend flashinfer; otherwise it must be 1"
            )


def check(server_args: Any) -> None:
    """Raise `ValueError` where ranks would not run the same batches, so that they could not share drafts."""
    for name in ("dp_size", "pp_size"):
        if (size := getattr(server_args, name)) > 1:
            raise ValueError(f"--{name.replace('_', '-')} is {size}; FORERUN needs 1")


def register() -> None:
    """Register the algorithm FORERUN."""

    @SpeculativeAlgorithm.register(  # type: ignore[untyped-decorator]
        NAME, supports_overlap=True, validate_server_args=check, spec_class=ForerunAlgo
    )
    def _(server_args: Any) -> type:
        from forerun_sglang.worker import ForerunWorker

        return ForerunWorker
