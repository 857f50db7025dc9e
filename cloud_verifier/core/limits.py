"""Define the limits of one verifier, each with its unit and its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloud_verifier.core.engine_protocol import Judge
from cloud_verifier.core.sources import VerifierSource
from common.acceptance import LOSSLESS, AcceptanceRule
from common.config.setting import check_section, setting
from common.errors import UserError
from common.memory import TARGET_SHARE, tokens_that_fit
from common.messages import INITIAL_CREDIT

CHUNK = 256
"""Prompt tokens in one step on a CPU, which takes longer for each."""

CPU_SLOTS = 16384
"""Least KV slots of `--slots auto` where memory is shared with other programs, unless it holds fewer."""

CUDA_CHUNK = 1024
"""On a GPU 256 tokens take hardly longer to compute than to launch. Beyond 1,024 a step only gets longer."""


def slots_that_fit(kv_bytes: int, max_positions: int, free: int | None, max_rows: int) -> int:
    """Return what `--slots auto` means where memory is shared with other programs: slots for one text of all
    the target's positions beside a step of `max_rows` nodes, and `CPU_SLOTS` at least.

    They take at most `TARGET_SHARE` of the `free` bytes (None or 0: unknown), `kv_bytes` each.
    """
    return tokens_that_fit(kv_bytes, max_positions + max_rows, CPU_SLOTS, free, TARGET_SHARE)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Holds the limits of one verifier. The constructor checks each."""

    max_sessions: int = setting(64, "sessions open at once", unit="sessions", low=1, is_common=True)
    max_rows: int = setting(256, "nodes in one step, tips included, all sessions", unit="nodes", low=1)
    prefill_chunk: int | None = setting(
        None,
        f"prompt tokens in one step, all sessions; longer steps delay every session; auto: {CHUNK}, and "
        f"{CUDA_CHUNK} on a CUDA device",
        unit="tokens",
        low=1,
        unset="auto",
    )
    prefix_cache: bool = setting(
        True, "cache of ended sessions' KV, for sessions of the same tenant with the same beginning"
    )
    # Sessions without fill never get guesses.
    recall: bool = setting(False, "the verifier's own guesses, copied from earlier in the same text")
    shared_texts: int = setting(
        0,
        "newest tokens of each tenant's texts, kept for recall (10 bytes each); the speed of guesses lets "
        "users of a tenant infer each other's texts; 0: none",
        unit="tokens",
        low=0,
        has_flag=False,
    )
    # Not settings: nobody has needed another number.
    max_nodes_per_session: int = 16  # nodes in one step, likeliest first; a longer path seldom holds
    max_live_nodes: int = 128  # of one session; further proposed nodes are dropped
    max_slowdown: float = 0.02  # share of a session's token rate that other sessions' drafts may take
    max_context: int = 2**20  # KV slots of the sessions that decode in one step; more take turns
    max_prefill_slowdown: float = 1.75  # factor by which prompts may lengthen a step of other sessions
    # Tokens of a session's text whose slots are reserved when it is admitted. A longer text takes free slots,
    # or the youngest session is preempted and evaluated anew. Most texts end long before their max_tokens.
    promised_text: int = 512
    open_timeout: float = 10.0  # seconds in which a stream's first message must come
    idle_timeout: float = 300.0  # seconds that a session without fill waits for a Propose
    stall_timeout: float = 60.0  # seconds that an edge may leave its messages unread
    rules: tuple[AcceptanceRule, ...] = (
        LOSSLESS  # rules that a session may ask for; lossy rules must be allowed explicitly
    )
    judge: Judge | None = None  # what the rule `judge` decides by
    sources: tuple[Callable[[Sequence[int]], VerifierSource], ...] = ()  # of proposals, by a session's prompt

    @property
    def chunk(self) -> int:
        """Return `prefill_chunk`, or what `auto` means where the device is not known."""
        return CHUNK if self.prefill_chunk is None else self.prefill_chunk

    def __post_init__(self) -> None:
        check_section(self)
        if self.shared_texts and not self.recall:
            raise UserError(f"shared_texts is {self.shared_texts}; it must be 0, or above 0 with recall")
        if AcceptanceRule.JUDGE in self.rules and self.judge is None:
            raise UserError("rules allows the rule judge, which needs a judge; give one as well")
        if self.max_live_nodes < INITIAL_CREDIT:  # else nodes sent before `Opened` would be dropped (rule 4)
            raise UserError(f"max_live_nodes is {self.max_live_nodes}; it must be at least {INITIAL_CREDIT}")
