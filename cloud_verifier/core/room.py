"""Room for texts as they grow: more slots while there are some, and the youngest session's when there are
not.

At admission a session is promised slots for its prompt and part of its text. One that writes more takes what
is left. When nothing is, the youngest session gives way: its KV goes, its tokens stay, and it goes on when
there is room again. Its user sees a pause. The oldest never gives way, and alone it always fits, so every
text ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloud_verifier.core.admission import need_of
from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.memory import KvMemory
from cloud_verifier.core.session import VerifySession
from cloud_verifier.core.tenants import Tenants
from common.errors import CapacityError

GROWTH = 64  # slots asked for at a time


class Room:
    """Leases of one verifier's sessions. While one is in a step it is neither secured nor sent away."""

    def __init__(self, config: SchedulerConfig, memory: KvMemory, tenants: Tenants) -> None:
        self.num_preempted = 0  # over all time
        self._config = config
        self._memory = memory
        self._tenants = tenants
        self._waiting: list[VerifySession] = []  # preempted, the oldest first

    @property
    def num_waiting(self) -> int:
        """Preempted sessions, before which nobody is admitted."""
        return len(self._waiting)

    def admit(self, session: VerifySession) -> int:
        """Give it a lease; how many of its tokens need not be read again. Raises `CapacityError`."""
        need = need_of(session.request, self._config)
        committed = session.tree.committed
        session.lease = self._memory.open(session.tenant, committed[:-1], need.promised)
        session.num_promised, session.num_slots_at_most = need.promised, need.most
        self._tenants.enter(session.tenant, need.promised)
        return len(session.lease.slots)

    def leave(self, session: VerifySession, keep: bool = True) -> None:
        """It has ended and is in no step."""
        if session.preempted:
            self._waiting.remove(session)
        session.abandon(self._memory, keep)
        self._tenants.leave(session.tenant, session.num_promised)

    def secure(self, ready: Sequence[VerifySession], everybody: Iterable[VerifySession]) -> bool:
        """See to it that each of `ready` has slots for its next step, or is preempted; the oldest first.
        Whether somebody had to give way."""
        short = [session for session in ready if self._lacks(session)]
        if not short:
            return False
        before = self.num_preempted
        short.sort(key=_age)
        victims = sorted((each for each in everybody if not each.preempted), key=_age)
        for session in short:
            while not session.preempted and self._lacks(session):
                if not self._grow(session):
                    self._preempt(victims.pop() if _age(victims[-1]) > _age(session) else session)
        return self.num_preempted > before

    def has_more(self, session: VerifySession) -> bool:
        """Whether it has a slot for its next tip, or there are some to be promised; nobody gives way."""
        return session.lease.spare > 0 or (self._grow(session) and session.lease.spare > 0)

    def readmit(self, now: float) -> None:
        """Let those come back for whom there is room again, the oldest first."""
        while self._waiting and self._come_back(self._waiting[0], now):
            del self._waiting[0]

    def _lacks(self, session: VerifySession) -> bool:
        return session.lease.spare < session.num_prefill + self._config.max_nodes_per_session

    def _grow(self, session: VerifySession) -> bool:
        count = min(GROWTH, session.num_slots_at_most - session.num_promised)
        grown = self._memory.grow(session.lease, count)
        if grown:
            self._promise(session, count)
        return grown

    def _preempt(self, session: VerifySession) -> None:
        session.preempt(self._memory)
        self._promise(session, -session.num_promised)
        self._waiting.append(session)
        self._waiting.sort(key=_age)
        self.num_preempted += 1

    def _come_back(self, session: VerifySession, now: float) -> bool:
        committed, config = session.tree.committed, self._config
        left = min(session.max_length - len(committed), config.promised_text)
        need = len(committed) + left + config.max_nodes_per_session
        try:
            session.lease = self._memory.open(session.tenant, committed[:-1], need)
        except CapacityError:
            return False
        self._promise(session, need)
        session.preempted, session.ready_at = False, now
        return True

    def _promise(self, session: VerifySession, count: int) -> None:
        session.num_promised += count
        self._tenants.hold(session.tenant, count)


def _age(session: VerifySession) -> tuple[float, int]:
    """The oldest first."""
    return session.opened_at, session.key
