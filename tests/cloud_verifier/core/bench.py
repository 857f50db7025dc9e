"""A scheduler with an engine that counts: the token after t is t + 1, and 0 comes after 9."""

import numpy as np

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.effects import Effect, End, Reply
from cloud_verifier.core.engine_protocol import StepItem, StepPlan, StepResult, TargetInfo
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.core.verify_session import VerifySession
from common.acceptance import LOSSLESS, AcceptanceRule
from common.errors import Code, ForerunError
from common.messages import Commit, Open, Propose, pack_logprob
from common.sampling import SamplingParams

VOCAB = 10
PRINT = b"\x0a\x0b"


def ask(
    prompt: tuple[int, ...] = (1,), committed: tuple[int, ...] = (), fill: bool = True, **sampling: object
) -> Open:
    """An `Open` that this bench's verifier takes: 40 tokens, end tokens ignored, unless told otherwise."""
    params = SamplingParams(**{"max_tokens": 40, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return Open(prompt, params, PRINT, committed=committed, fill=fill)


def chain(*tokens: int, anchor: int | None = None, logprob: float = -0.5, seen: int = 0) -> Propose:
    """A chain of equally likely nodes."""
    return Propose(tokens, bytes([pack_logprob(logprob)] * len(tokens)), (), anchor, seen)


def siblings(anchor: int, **logprobs: float) -> Propose:
    """Children of one committed token: `t5=-0.5` is token 5 at half a nat."""
    tokens = tuple(int(name[1:]) for name in logprobs)
    packed = bytes(pack_logprob(value) for value in logprobs.values())
    return Propose(tokens, packed, (0,) * len(tokens), anchor)


def leased(session: VerifySession, num_slots: int = 50) -> tuple[VerifySession, KvMemory]:
    """The session with all slots of a memory that caches nothing."""
    memory = KvMemory(num_slots, caches=False)
    session.admit(memory.open("", session.tree.committed[:-1], num_slots), num_slots, num_slots)
    return session, memory


def count(item: StepItem) -> np.ndarray:
    """The choices of one item: each output row's token + 1."""
    return ((item.tokens[item.outputs] + 1) % VOCAB).astype(np.int32)


def result_of(plan: StepPlan) -> StepResult:
    margins = tuple(np.zeros(len(item.outputs), np.float32) for item in plan.items)
    return StepResult(tuple(count(item) for item in plan.items), margins)


class Bench:
    """Runs steps by hand. Times are the caller's."""

    def __init__(
        self,
        *,
        num_slots: int = 1000,
        eos: tuple[int, ...] = (0,),
        idle: float = 300.0,
        recall: bool = False,
        shared_texts: int = 0,
        rules: tuple[AcceptanceRule, ...] = LOSSLESS,
        **limits: float,
    ) -> None:
        info = TargetInfo("counter", VOCAB, 100, num_slots, eos, PRINT)
        config = SchedulerConfig(
            idle_timeout=idle,
            recall=recall,
            shared_texts=shared_texts,
            rules=rules,
            **limits,  # type: ignore[arg-type]  # as the fields are
        )
        self.scheduler = VerifyScheduler(info, config)
        self.scheduler.cost.per_row = 0.00005  # rows are known to be cheap

    def open(self, key: int, request: Open | None = None, now: float = 0.0, tenant: str = "") -> list[Effect]:
        self.scheduler.on_open(key, request or ask(), now, Caller(tenant))
        return self.effects()

    def propose(self, key: int, message: Propose, now: float = 0.0) -> list[Effect]:
        self.scheduler.on_propose(key, message, now)
        return self.effects()

    def begin(self, now: float = 0.0) -> StepPlan:
        plan = self.scheduler.next_step(now)
        assert plan is not None, "nothing is to do"
        self.scheduler.check_integrity()
        return plan

    def end(self, plan: StepPlan, now: float = 0.0) -> list[Effect]:
        self.scheduler.on_step_done(result_of(plan), now)
        return self.effects()

    def step(self, now: float = 0.0) -> list[Effect]:
        """A step that takes no time."""
        return self.end(self.begin(now), now)

    def effects(self) -> list[Effect]:
        self.scheduler.check_integrity()
        return self.scheduler.effects()

    def text(self, key: int) -> list[int]:
        session = self.scheduler.sessions[key]
        return session.tree.committed[session.prompt_length :]


def rows(plan: StepPlan) -> dict[int, list[int]]:
    """Session -> the tokens of its rows."""
    return {item.session: item.tokens.tolist() for item in plan.items}


def commits(effects: list[Effect]) -> list[Commit]:
    return [e.message for e in effects if isinstance(e, Reply) and isinstance(e.message, Commit)]


def ends(effects: list[Effect]) -> list[End]:
    return [effect for effect in effects if isinstance(effect, End)]


def ended(effects: list[Effect]) -> tuple[int, type[ForerunError], Code]:
    """The session of the only end, the class of its error and its code."""
    (end,) = ends(effects)
    assert end.error is not None
    return end.session, type(end.error), end.error.code
