"""The operator's own gRPC listener: live sessions of all tenants, for `forerun top`.

There is no authentication, so it listens where nobody from outside comes: on the loopback interface, or on a
Unix socket that only its owner may open.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Callable, Iterator
from typing import Any

import grpc.aio

from cloud_verifier.guard import Guard
from cloud_verifier.listening import listen
from cloud_verifier.telemetry.snapshot import SessionState, Snapshot
from common.address import host_and_port
from common.errors import UserError
from common.pb import admin_pb2 as pb
from common.pb import admin_pb2_grpc as pb_grpc
from common.rpc import admin
from common.rpc.options import server_options

UNIX = "unix:"


class AdminService(pb_grpc.AdminServiceServicer):
    """Answers with what `take` returns."""

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Any) -> pb.ListSessionsResponse:
        return admin.encode_overview(overview_of(self._take()))


class AdminServer:
    """Listens on `address`: HOST:PORT of the loopback interface (port 0 picks one), or unix:PATH. An async
    context manager; inside, `address` is where it can be reached.

    Raises `UserError` when it cannot listen there, or must not.
    """

    def __init__(self, take: Callable[[], Snapshot], address: str) -> None:
        check_private(address)
        self._service = AdminService(take)
        self._server: grpc.aio.Server | None = None
        self.address = address

    async def __aenter__(self) -> AdminServer:
        server = self._server = grpc.aio.server(options=server_options(), interceptors=(Guard(),))
        pb_grpc.add_AdminServiceServicer_to_server(self._service, server)
        with _private_files():
            port = listen(server, self.address, "--admin address")
        if not self.address.startswith(UNIX):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        await self._server.stop(grace=None)


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Files that are made within this only their owner may open. A socket whose mode is changed afterwards
    could have been opened meanwhile."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def check_private(address: str) -> None:
    """Raise `UserError` unless only this machine can reach `address`."""
    if address.startswith(UNIX) and len(address) > len(UNIX):
        return
    found = host_and_port(address)
    if found is None:
        raise UserError(f"--admin is {address!r}; it must be unix:PATH or HOST:PORT, 127.0.0.1:50061 for one")
    if not is_loopback(found[0]):
        raise UserError(
            f"--admin is {address!r}, and it asks nobody who they are: give an address of this machine only "
            "(127.0.0.1:PORT or unix:PATH), and reach it through ssh or kubectl port-forward"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False  # a name may stand for any address


def overview_of(snapshot: Snapshot) -> admin.Overview:
    """A snapshot in the words of the wire."""
    counters, instruments, slots = snapshot.counters, snapshot.instruments, snapshot.slots
    return admin.Overview(
        model=snapshot.target.name,
        version=snapshot.version,
        uptime_us=_us(snapshot.uptime),
        draining=snapshot.draining,
        max_sessions=snapshot.config.max_sessions,
        totals=admin.Totals(
            steps=counters.num_steps,
            step_time_us=_us(instruments.step_time.total),
            queue_time_us=_us(instruments.queue_time.total),
            queued=sum(instruments.queue_time.counts),
            rows=counters.num_prefilled + counters.num_evaluated,
            tips=counters.num_evaluated - counters.num_drafts,
            drafts=counters.num_drafts,
            won=counters.num_won,
            committed=counters.num_committed,
            accepted=counters.num_committed - counters.num_server_made,
            prompt_tokens=counters.num_prompt_tokens,
            cached_tokens=counters.num_cached_tokens,
            opened=counters.num_opened,
            refused=sum(counters.num_refused.values()),
            preempted=snapshot.num_preempted,
            bytes_received=sum(snapshot.received.num_bytes.values()),
            bytes_sent=sum(snapshot.sent.num_bytes.values()),
        ),
        slots=admin.KvSlots(
            slots.num_free, slots.num_cached, slots.num_shared, slots.num_owned, slots.num_available
        ),
        sessions=tuple(map(_live, snapshot.sessions)),
    )


def _live(state: SessionState) -> admin.LiveSession:
    tally = state.tally
    silent = None if tally.committed_at is None else _us(state.age + tally.opened_at - tally.committed_at)
    first = None if tally.first_commit_at is None else _us(tally.first_commit_at - tally.opened_at)
    return admin.LiveSession(
        stream=state.key,
        mode=state.mode,
        session_id=state.session_id,
        tenant=state.tenant,
        age_us=_us(state.age),
        prompt_tokens=state.num_prompt_tokens,
        resumed_tokens=state.num_resumed_tokens,
        max_tokens=state.max_tokens,
        cached_tokens=tally.num_cached,
        committed=tally.num_committed,
        accepted=tally.num_committed - tally.num_server_made,
        steps=tally.num_steps,
        rows=tally.num_rows,
        drafts=tally.num_drafts,
        won=tally.num_won,
        silent_us=silent,
        first_token_us=first,
        credit=state.credit,
        lag=state.lag,
        live_nodes=state.num_live,
        slots=state.num_slots,
        promised_slots=state.num_promised,
        preempted=tally.num_preempted,
        bytes_received=state.num_received,
        bytes_sent=state.num_sent,
    )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
