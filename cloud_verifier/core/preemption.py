"""Preempt younger sessions in favour of older ones.

At admission a session is promised slots for its prompt and part of its text. A longer text takes free slots.
If no slot is free, the youngest session is preempted: it loses its KV, keeps its tokens and continues once
slots are free again. Its user sees a pause. The oldest session is never preempted and always fits alone, so
every text ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloud_verifier.core.admission import need_of
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.tenants import Tenants
from cloud_verifier.core.verify_session import VerifySession
from common.errors import CapacityError

GROWTH = 64  # slots asked for at a time


class Preemption:
    """Manages the leases of one verifier's sessions. Sessions in a running step are never preempted."""

    def __init__(self, config: SchedulerConfig, memory: KvMemory, tenants: Tenants) -> None:
        self.num_preempted = 0  # over all time
        self._config = config
        self._memory = memory
        self._tenants = tenants
        self._waiting: list[VerifySession] = []  # preempted, the oldest first

    @property
    def num_waiting(self) -> int:
        """The number of preempted sessions. New sessions are admitted after them."""
        return len(self._waiting)

    def admit(self, session: VerifySession) -> int:
        """Give the session a lease and return how many of its tokens are cached. Raises `CapacityError`."""
        need = need_of(session.request, self._config)
        committed = session.tree.committed
        lease = self._memory.open(session.tenant, committed[:-1], need.promised, session.prompt_length)
        session.admit(lease, need.promised, need.most)
        self._tenants.enter(session.tenant, need.promised)
        return len(session.lease.slots)

    def leave(self, session: VerifySession, keep: bool = True) -> None:
        """Forget a session that has ended and is in no step."""
        if session in self._waiting:
            self._waiting.remove(session)
        session.abandon(self._memory, keep)
        self._tenants.leave(session.tenant, session.num_promised)

    def secure(self, ready: Sequence[VerifySession], everybody: Iterable[VerifySession]) -> bool:
        """Give each of `ready` slots for its next step, or preempt it. Return whether one was preempted."""
        most = self._config.max_nodes_per_session
        short = [each for each in ready if each.lease.spare < each.num_prefill + most]
        if not short:
            return False
        before = self.num_preempted
        short.sort(key=_age)
        victims = sorted((each for each in everybody if not each.preempted), key=_age)
        for session in short:
            while not session.preempted and session.lease.spare < session.num_prefill + most:
                if not self._grow(session):
                    self._preempt(victims.pop() if _age(victims[-1]) > _age(session) else session)
        return self.num_preempted > before

    def has_more(self, session: VerifySession) -> bool:
        """Return whether the session has or can get a slot for its next tip without a preemption."""
        return session.lease.spare > 0 or (self._grow(session) and session.lease.spare > 0)

    def readmit(self, now: float) -> None:
        """Readmit preempted sessions for which there is room again, the oldest first."""
        while self._waiting and self._come_back(self._waiting[0], now):
            del self._waiting[0]

    def _grow(self, session: VerifySession) -> bool:
        count = min(GROWTH, session.num_slots_at_most - session.num_promised)
        grown = self._memory.grow(session.lease, count)
        if grown:
            session.grow(count)
            self._tenants.hold(session.tenant, count)
        return grown

    def _preempt(self, session: VerifySession) -> None:
        self._tenants.hold(session.tenant, -session.num_promised)
        session.preempt(self._memory)
        self._waiting.append(session)
        self._waiting.sort(key=_age)
        self.num_preempted += 1

    def _come_back(self, session: VerifySession, now: float) -> bool:
        committed, config = session.tree.committed, self._config
        left = min(session.max_length - len(committed), config.promised_text)
        need = len(committed) + left + config.max_nodes_per_session
        try:
            lease = self._memory.open(session.tenant, committed[:-1], need, session.prompt_length)
        except CapacityError:
            return False
        session.readmit(lease, need, now)
        self._tenants.hold(session.tenant, need)
        return True


def _age(session: VerifySession) -> tuple[float, int]:
    return session.opened_at, session.key
