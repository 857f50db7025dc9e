"""The limits of one verifier, each with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass

from common.acceptance import LOSSLESS, AcceptanceRule
from common.errors import UserError
from common.messages import INITIAL_CREDIT

MAY_BE_NOTHING = ("recall", "shared_ngrams", "prefix_cache", "rules")
"""The settings of a verifier that are no limits."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one verifier. Each is checked in the constructor."""

    max_sessions: int = 64  # open at once
    max_tenant_share: float = 1.0  # of all sessions and of all slots that one tenant may hold
    max_rows: int = 256  # nodes (tips included) in one step, all sessions
    max_context: int = 2**20  # KV slots of sessions that decode in one step; those beyond take turns
    max_nodes_per_session: int = 16  # of the rows, for one session: the likeliest 16 hold most that is right
    prefill_chunk: int = 256  # prompt tokens in one step, all sessions; bounds the step that others wait for
    max_prefill_slowdown: float = 1.75  # times a step's length without them: fewer prompt tokens, if need be
    max_live_nodes: int = 128  # live nodes a session may ever hold here; more are dropped
    min_credit: int = 8  # a session is always let propose this many
    live_node_budget: int = 2048  # live nodes over all sessions; credit divides it
    max_slowdown: float = 0.02  # share of its rate that a session may lose by drafts of others
    # Tokens of text whose slots a session is promised when it is admitted; for more it takes what is there,
    # or the youngest session gives way and is evaluated anew. Most texts end long before their max_tokens.
    promised_text: int = 512
    prefix_cache: bool = True  # keep the KV of what was read, for a tenant's next session that begins alike
    open_timeout: float = 10.0  # seconds a stream may stand without its Open
    idle_timeout: float = 300.0  # seconds after which a session that waits for a Propose ends
    stall_timeout: float = 60.0  # seconds after which a session ends whose edge does not read what it is sent
    recall: bool = False  # guess what a text repeats of itself; not without fill, the classic scheme
    # Keys of a table of all texts of a tenant to guess from, too. 0 = none: by the pace of guessed tokens one
    # of its users would learn what another has written.
    shared_ngrams: int = 0
    rules: tuple[AcceptanceRule, ...] = (
        LOSSLESS  # that a session may ask for; lossy ones are named on purpose
    )

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name not in MAY_BE_NOTHING and not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.max_tenant_share > 1:
            raise UserError(f"max_tenant_share is {self.max_tenant_share}; it must be at most 1")
        if self.max_prefill_slowdown <= 1:
            raise UserError(f"max_prefill_slowdown is {self.max_prefill_slowdown}; it must be above 1")
        if self.min_credit > self.max_live_nodes:
            raise UserError(f"min_credit {self.min_credit} exceeds max_live_nodes {self.max_live_nodes}")
        if self.shared_ngrams < 0 or (self.shared_ngrams and not self.recall):
            raise UserError(f"shared_ngrams is {self.shared_ngrams}; it must be 0, or above 0 with recall")
        if self.max_live_nodes < INITIAL_CREDIT:  # else nodes sent before `Opened` were dropped (rule 4)
            raise UserError(f"max_live_nodes is {self.max_live_nodes}; it must be at least {INITIAL_CREDIT}")
