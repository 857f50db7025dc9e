"""Holds each tenant to its quota: at the door, and in each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cloud_verifier.core.batching import Batch
from cloud_verifier.core.quotas import NO_QUOTA, Meters, Quotas
from cloud_verifier.core.session import VerifySession
from cloud_verifier.core.target import StepPlan
from cloud_verifier.core.tenants import Tenant
from common.errors import CapacityError, Code, UserError
from common.messages import Open
from common.tree import Node

LIMITS = ("max_sessions", "max_share", "max_tokens", "positions_per_second", "sessions_per_second")


class Rationing:
    """`charge_stream` for each stream and `check` for its `Open`; then for each step `let_in`, `trim` and
    `charge`, in this order and at one time. Where no tenant has a rate of positions these three cost nothing.
    """

    def __init__(self) -> None:
        self._quotas = Quotas()
        self._streams = Meters(lambda tenant: None)  # sessions that are asked for
        self.meters = Meters(lambda tenant: None)  # positions
        self.refused = Counter[str]()  # sessions, by the limit
        self.num_held = 0  # times that a session was ready for a step and its tenant's bucket was empty
        self._has_rates = False

    def change(self, quotas: Quotas, now: float) -> None:
        """From now on these."""
        self._quotas = quotas
        self._streams.change(lambda tenant: quotas.of(tenant).sessions, now)
        self.meters.change(lambda tenant: quotas.of(tenant).positions, now)
        every = (quotas.default, *quotas.tenants.values())
        self._has_rates = any(each.positions_per_second is not None for each in every)

    def longest_text(self, tenant: str) -> int | None:
        """Tokens of one text that the tenant's quota allows; None without such a limit."""
        return self._quotas.of(tenant).max_tokens

    # At the door ------------------------------------------------------------------------------------------

    def charge_stream(self, tenant: str, now: float) -> None:
        """A stream begins, of which nothing is read yet. Raises `CapacityError` if the tenant has asked for
        as many sessions as its quota allows."""
        if self._streams.room(tenant, now) == 0:
            rate = f"{self._quotas.of(tenant).sessions_per_second:g} sessions a second"
            words = f"this tenant has asked for the {rate} of its quota"
            self._refuse("sessions_per_second", words, self._streams.turn(tenant, now))
        self._streams.take({tenant: 1})

    def check(self, request: Open, promised: int, tenant: Tenant, num_slots: int, now: float) -> None:
        """Raise `CapacityError` if the tenant has as much as its quota allows, `UserError` for a text that it
        never allows. `promised`, slots that the session is to be promised, of `num_slots` in all."""
        quota = self._quotas.of(tenant.name)
        if quota is NO_QUOTA:
            return
        wanted = request.sampling.max_tokens
        if quota.max_tokens is not None and wanted > quota.max_tokens:
            self.refused["max_tokens"] += 1
            words = f"max_tokens is {wanted}, and this tenant's texts have {quota.max_tokens} at most"
            raise UserError(words, Code.OUT_OF_RANGE)
        if quota.max_sessions is not None and tenant.num_sessions >= quota.max_sessions:
            words = f"this tenant has {tenant.num_sessions} sessions here, as many as its quota allows"
            self._refuse("max_sessions", words)
        if quota.max_share is not None and tenant.num_sessions:
            most = int(quota.max_share * num_slots)
            if tenant.num_slots + promised > most:
                words = f"this tenant holds {tenant.num_slots} KV slots here, and its quota allows {most}"
                self._refuse("max_share", words)
        if self.meters.room(tenant.name, now) == 0:
            rate = f"{quota.positions_per_second:g} positions a second"
            wait = self.meters.wait(tenant.name, len(request.prompt) + 1, now)
            self._refuse("positions_per_second", f"this tenant has had the {rate} of its quota", wait)

    def _refuse(self, limit: str, words: str, retry_after: float | None = None) -> None:
        self.refused[limit] += 1
        raise CapacityError(f"{words}; try later", retry_after=retry_after)

    # In a step --------------------------------------------------------------------------------------------

    def let_in(self, ready: list[VerifySession], now: float) -> tuple[list[VerifySession], float | None]:
        """Those of `ready` for which their tenants may have a position each, in the same order; and when more
        may be, if some are left out."""
        if not self._has_rates:
            return ready, None
        let, held, rooms = list[VerifySession](), Counter[str](), dict[str, int | None]()
        for session in ready:
            name = session.tenant
            room = rooms[name] if name in rooms else self.meters.room(name, now)
            if room == 0:
                held[name] += 1
            else:
                let.append(session)
            rooms[name] = room - 1 if room else room
        self.num_held += held.total()
        waits = [self.meters.wait(name, count, now) for name, count in held.items()]
        return let, now + min(waits) if waits else None

    def trim(self, batch: Batch, nodes: dict[int, list[Node]], now: float) -> Batch:
        """The batch with no more of any tenant than it may have; `nodes`, by session key, are cut. Each
        session keeps a position: of its prompt, or its tip. Drafts go first."""
        if not self._has_rates:
            return batch
        chunks, by_tenant = dict(batch.chunks), dict[str, list[VerifySession]]()
        for session in batch.members:
            by_tenant.setdefault(session.tenant, []).append(session)
        for name, members in by_tenant.items():
            room = self.meters.room(name, now)
            num_rows = sum(chunks.get(each.key, 0) + len(nodes.get(each.key, ())) for each in members)
            if room is not None and num_rows > room:
                _cut(members, room, chunks, nodes)
        return replace(batch, chunks=chunks)

    def charge(self, members: Sequence[VerifySession], plan: StepPlan) -> None:
        """The step is going to be run."""
        if self._has_rates:
            counts = Counter[str]()
            for session, item in zip(members, plan.items, strict=True):
                counts[session.tenant] += len(item.tokens)
            self.meters.take(counts)

    def charge_ahead(self, sessions: Iterable[VerifySession]) -> bool:
        """Whether a step of nothing but the tips of these may follow the one that runs; then it is
        charged."""
        return not self._has_rates or self.meters.take_ahead(_tips(sessions))

    def give_back(self, sessions: Iterable[VerifySession]) -> None:
        """It is not run after all."""
        if self._has_rates:
            self.meters.give_back(_tips(sessions))


def _tips(sessions: Iterable[VerifySession]) -> Counter[str]:
    return Counter(session.tenant for session in sessions)


def _cut(
    members: Sequence[VerifySession], room: int, chunks: dict[int, int], nodes: dict[int, list[Node]]
) -> None:
    """Leave `room` positions, which are as many as there are members or more."""
    spare = room - len(members)
    for session in members:
        key = session.key
        if chunk := chunks.get(key, 0):
            chunks[key] = 1 + min(chunk - 1, spare)
            spare -= chunks[key] - 1
            if key in nodes and (chunks[key] < chunk or not spare):
                del nodes[key]  # its tip comes after its prompt
            elif key in nodes:
                spare -= 1
    for session in members:
        if len(taken := nodes.get(session.key, ())) > 1:
            kept = min(len(taken) - 1, spare)
            spare -= kept
            del nodes[session.key][1 + kept :]
            session.promised = sum(math.exp(session.tree.worth(node)) for node in taken[1:])
