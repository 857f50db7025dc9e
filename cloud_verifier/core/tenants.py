"""Decide what each tenant may use: sessions, KV slots, positions and streams a second, and texts.

A position is a row of the target: of a prompt, of the text, or of a draft, accepted or not. A step takes its
positions from the tenants' quotas before it runs. Sessions whose tenant has none left wait; they are not
ended. A stream above the quota is refused, and the error says when to retry.

If a step cannot serve all sessions, the least served tenant comes first (the counter of Sheng et al. 2024,
"Fairness in serving large language models", with evaluated rows in place of tokens). Rows of rejected drafts
count as well: a tenant pays for what its edges propose in vain.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cloud_verifier.core.batching import StepDraft
from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.quotas import NO_QUOTA, Meters, Quotas
from cloud_verifier.core.verify_session import VerifySession
from common.errors import CapacityError, Code, UserError
from common.messages import Open
from common.prompt_lookup import NO_TEXTS, SharedTexts
from common.suffix_index import GrowingIndex
from common.tree import Node

LIMITS = ("max_sessions", "max_share", "max_tokens", "positions_per_second", "sessions_per_second")
"""The limits of a quota by which sessions are refused."""

MAX_AWAY = 4096
"""Tenants without a session whose service is remembered. Beyond that the first to leave is forgotten."""

MAX_WITH_TEXTS = 64
"""Tenants whose texts are remembered, in some 10 bytes a token."""


@dataclass(slots=True)
class Tenant:
    """Holds the current holdings of one tenant, and its service so far."""

    name: str
    num_sessions: int = 0
    num_slots: int = 0  # promised to its sessions
    service: float = 0.0  # rows evaluated for it, prefill and drafts included
    num_wasted: int = 0  # of them, rejected drafts, since the tenant last had no session


class Tenants:
    """Holds the tenants that have a session, and every tenant's quota.

    The scheduler calls `charge_stream` for each stream and `check` for its `Open`, `enter` and `leave` as its
    session begins and ends. If a quota has a rate (`has_rates`), it calls `let_in`, `trim` and `charge` for
    each step, in this order and with the same `now`.

    A returning tenant keeps its earlier service, and starts with at least that of the least served tenant
    here (or of the last that left). So a tenant gains nothing by being away or by reconnecting for every
    text. Args: num_slots, of the verifier; shared_texts, tokens of each tenant's texts to keep.
    """

    def __init__(self, num_slots: int = 0, shared_texts: int = 0) -> None:
        self.refused = Counter[str]()  # by limit
        self.positions = Meters(lambda tenant: None)
        self.texts = TenantTexts(shared_texts)
        self._num_slots = num_slots
        self._here: dict[str, Tenant] = {}
        self._away = OrderedDict[str, float]()  # service of tenants without a session, first to leave first
        self._last_left = 0.0  # service
        self._quotas = Quotas()
        self._streams = Meters(lambda tenant: None)  # requested sessions
        self.has_rates = False

    def __len__(self) -> int:
        return len(self._here)

    def get(self, name: str) -> Tenant:
        """Return the tenant's current record. A tenant without a session has only its service."""
        return self._here.get(name) or Tenant(name, service=self._away.get(name, 0.0))

    def enter(self, name: str, num_slots: int) -> None:
        """Begin a session of the tenant, with `num_slots` promised."""
        tenant = self._here.get(name)
        if tenant is None:
            least = min((other.service for other in self._here.values()), default=self._last_left)
            service = max(least, self._away.pop(name, 0.0))
            tenant = self._here[name] = Tenant(name, service=service)
        tenant.num_sessions += 1
        tenant.num_slots += num_slots

    def leave(self, name: str, num_slots: int) -> None:
        """End a session of the tenant, with `num_slots` still promised."""
        tenant = self._here[name]
        tenant.num_sessions -= 1
        tenant.num_slots -= num_slots
        if not tenant.num_sessions:
            del self._here[name]
            self._last_left = self._away[name] = tenant.service
            if len(self._away) > MAX_AWAY:
                self._away.popitem(last=False)

    def hold(self, name: str, num_slots: int) -> None:
        """Promise `num_slots` more to a session of the tenant; fewer if negative."""
        self._here[name].num_slots += num_slots

    def note_service(self, name: str, num_rows: int, num_wasted: int) -> None:
        """Add a step's rows to the tenant's service. A tenant without a session is ignored."""
        tenant = self._here.get(name)
        if tenant is not None:
            tenant.service += num_rows
            tenant.num_wasted += num_wasted

    def service(self, name: str) -> float:
        """Return the rows evaluated for the tenant so far."""
        return self.get(name).service

    # At the door ------------------------------------------------------------------------------------------

    def change(self, quotas: Quotas, now: float) -> None:
        """Use these quotas from now on."""
        self._quotas = quotas
        self._streams.change(lambda tenant: quotas.of(tenant).sessions, now)
        self.positions.change(lambda tenant: quotas.of(tenant).positions, now)
        every = (quotas.default, *quotas.tenants.values())
        self.has_rates = any(quota.positions_per_second is not None for quota in every)

    def longest_text(self, name: str) -> int | None:
        """Return the most tokens of one text by the tenant's quota; None without such a limit."""
        return self._quotas.of(name).max_tokens

    def charge_stream(self, name: str, now: float) -> None:
        """Charge a stream that begins. Raises `CapacityError` if the tenant has begun too many."""
        if self._streams.room(name, now) == 0:
            rate = f"{self._quotas.of(name).sessions_per_second:g} sessions a second"
            words = f"this tenant has asked for the {rate} of its quota"
            self._refuse("sessions_per_second", words, self._streams.turn(name, now))
        self._streams.take({name: 1})

    def check(self, name: str, request: Open, num_promised: int, now: float) -> None:
        """Raise `CapacityError` if the tenant has used up its quota, `UserError` for a text that is too long.
        `num_promised` counts the slots to be reserved for the session."""
        tenant, quota, wanted = self.get(name), self._quotas.of(name), request.sampling.max_tokens
        if quota is NO_QUOTA:
            return
        if quota.max_tokens is not None and wanted > quota.max_tokens:
            self.refused["max_tokens"] += 1
            words = f"max_tokens is {wanted}, and this tenant's quota allows at most {quota.max_tokens}"
            raise UserError(words, Code.OUT_OF_RANGE)
        if quota.max_sessions is not None and tenant.num_sessions >= quota.max_sessions:
            words = f"this tenant has {tenant.num_sessions} sessions here, as many as its quota allows"
            self._refuse("max_sessions", words)
        if quota.max_share is not None and tenant.num_sessions:
            most = int(quota.max_share * self._num_slots)
            if tenant.num_slots + num_promised > most:
                words = f"this tenant holds {tenant.num_slots} KV slots here, and its quota allows {most}"
                self._refuse("max_share", words)
        if self.positions.room(tenant.name, now) == 0:
            rate = f"{quota.positions_per_second:g} positions a second"
            wait = self.positions.wait(tenant.name, len(request.prompt) + 1, now)
            self._refuse("positions_per_second", f"this tenant has used up the {rate} of its quota", wait)

    def _refuse(self, limit: str, words: str, retry_after: float | None = None) -> None:
        self.refused[limit] += 1
        raise CapacityError(f"{words}; try later", retry_after=retry_after)

    # In a step --------------------------------------------------------------------------------------------

    def let_in(self, ready: list[VerifySession], now: float) -> tuple[list[VerifySession], float | None]:
        """Return the sessions of `ready` whose tenants may have a position, and when more may have one."""
        let, held, rooms = list[VerifySession](), Counter[str](), dict[str, int | None]()
        for session in ready:
            name = session.tenant
            room = rooms[name] if name in rooms else self.positions.room(name, now)
            if room == 0:
                held[name] += 1
            else:
                let.append(session)
            rooms[name] = room - 1 if room else room
        waits = [self.positions.wait(name, count, now) for name, count in held.items()]
        return let, now + min(waits) if waits else None

    def trim(self, draft: StepDraft, now: float) -> StepDraft:
        """Return the draft cut down to each tenant's quota. Each session keeps one position of its prompt, or
        its tip. Drafts are cut first."""
        chunks, nodes = dict(draft.chunks), dict(draft.nodes)
        by_tenant = dict[str, list[VerifySession]]()
        for session in draft.members:
            by_tenant.setdefault(session.tenant, []).append(session)
        for name, members in by_tenant.items():
            room = self.positions.room(name, now)
            num_rows = sum(chunks.get(member.key, 0) + len(nodes.get(member.key, ())) for member in members)
            if room is not None and num_rows > room:
                _cut(members, room, chunks, nodes)
        return replace(draft, chunks=chunks, nodes=nodes)

    def charge(self, members: Sequence[VerifySession], plan: StepPlan) -> None:
        counts = Counter[str]()
        for session, item in zip(members, plan.items, strict=True):
            counts[session.tenant] += len(item.tokens)
        self.positions.take(counts)

    def charge_ahead(self, sessions: Iterable[VerifySession]) -> bool:
        """Charge a step of these sessions' tips and return True, or return False if a quota forbids it."""
        return self.positions.take_ahead(Counter(session.tenant for session in sessions))

    def give_back(self, sessions: Iterable[VerifySession]) -> None:
        """Return what `charge_ahead` took, because the step will not run."""
        num_sessions = Counter(session.tenant for session in sessions)
        self.positions.take({tenant: -number for tenant, number in num_sessions.items()})


def _cut(
    members: Sequence[VerifySession], room: int, chunks: dict[int, int], nodes: dict[int, Sequence[Node]]
) -> None:
    """Cut chunks and nodes to `room` positions, at least one for each member."""
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
            nodes[session.key] = taken[: 1 + kept]
            session.account.promise(session.tree, taken[1 : 1 + kept])


class TenantTexts:
    """Holds the texts of each tenant, for others of its sessions to look up in. The speed of guesses may
    reveal texts to users of the same tenant, never to another tenant. Beyond `MAX_WITH_TEXTS` the texts of
    the longest unused tenant are forgotten.

    Args: capacity, tokens of each tenant, the newest; 0: none.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._texts = OrderedDict[str, SharedTexts]()

    def of(self, tenant: str) -> SharedTexts:
        if not self._capacity:
            return NO_TEXTS
        texts = self._texts.pop(tenant, None) or SharedTexts(GrowingIndex(capacity=self._capacity))
        self._texts[tenant] = texts
        if len(self._texts) > MAX_WITH_TEXTS:
            self._texts.popitem(last=False)
        return texts
