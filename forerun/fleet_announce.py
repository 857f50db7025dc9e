"""`forerun fleet announce`: keeps a verifier's offer fresh at the broker, beside the verifier."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from common.errors import ForerunError, UnavailableError, UserError
from forerun.edge_tls import edge_tls
from forerun.fleet_options import broker_from, needed
from forerun.options import split_address

if TYPE_CHECKING:
    from common.rpc.describe import Description
    from edge_client.channel import VerifierChannel
    from edge_client.core.fleet.payloads import VerifierStatus
    from edge_client.fleet.operator import Signer

LEASE = 4
"""Intervals that a signed offer holds: a sidecar that died with its verifier leaves no offer behind."""

WILL_LIFETIME = 30 * 86400.0
"""Seconds that the signed last will may be published after the connection was made."""

RETRY_TIME = 10.0
"""Seconds between attempts when the broker is away."""


async def announce(options: argparse.Namespace, signer: Signer | None) -> None:
    """Until cancelled, or once. Raises `UserError`; with `--once` also `UnavailableError`.

    The verifier is asked as an edge asks it, and under the same rule: what an answer says is signed and told
    to a whole fleet, so nobody on the way may change it unless that is allowed on purpose.
    """
    from edge_client.channel import VerifierChannel
    from edge_client.core.fleet.names import check_name
    from edge_client.verifiers.addresses import parse_address

    if options.interval < 1:
        raise UserError(f"--interval is {options.interval} s; it must be 1 or more")
    split_address("--endpoint", options.endpoint)
    check_name("--name", options.name)
    tls = edge_tls(options)
    asked = parse_address(
        options.ask or options.endpoint, encrypted=tls is not None, insecure=options.insecure
    )
    async with VerifierChannel(str(asked), tls=tls) as verifier:
        await _keep(options, signer, verifier)


async def _keep(options: argparse.Namespace, signer: Signer | None, verifier: VerifierChannel) -> None:
    """Across connections to the broker."""
    while True:
        try:
            await _hold(options, signer, verifier)
            return
        except UnavailableError as error:
            if options.once:
                raise
            print(f"! {error}; trying again", flush=True)
            await asyncio.sleep(RETRY_TIME)


async def _hold(options: argparse.Namespace, signer: Signer | None, verifier: VerifierChannel) -> None:
    """One connection. Its last will is the offer's end, under the same epoch."""
    from edge_client.core.fleet.names import TenantTopics
    from edge_client.core.fleet.payloads import State, VerifierStatus
    from edge_client.fleet.mqtt import Connection

    broker, epoch = broker_from(options), int(time.time())
    topic = TenantTopics(needed(options, "tenant")).verifier(options.name)
    death = VerifierStatus(state=State.OFFLINE, epoch=epoch, at=time.time())
    will = _sealed(options, signer, death, WILL_LIFETIME)
    name = f"forerun-verifier-{options.name}"
    async with Connection(
        broker, name, lambda topic, payload: None, broker.context(), None if options.once else (topic, will)
    ) as connection:
        try:
            await _refresh(
                options,
                signer,
                verifier,
                lambda sealed: connection.publish(topic, sealed, retain=True),
                epoch,
            )
        finally:
            if not options.once:
                connection.cut()  # so that the broker publishes the will


async def _refresh(
    options: argparse.Namespace,
    signer: Signer | None,
    verifier: VerifierChannel,
    publish: Callable[[bytes], Awaitable[None]],
    epoch: int,
) -> None:
    """Tell how the verifier is, again and again; a verifier that does not answer is told to be offline."""
    while True:
        status = await _look(options, verifier, epoch)
        lifetime = LEASE * options.interval
        await publish(_sealed(options, signer, status, lifetime))
        print(f"> {options.name} at {options.endpoint} is {status.state.value}", flush=True)
        if options.once:
            return
        await asyncio.sleep(options.interval)


async def _look(options: argparse.Namespace, verifier: VerifierChannel, epoch: int) -> VerifierStatus:
    from edge_client.core.fleet.payloads import State, VerifierStatus

    try:
        found = await verifier.describe()
    except ForerunError as error:
        print(f"! {error}", flush=True)
        return VerifierStatus(state=State.OFFLINE, epoch=epoch, at=time.time())
    return _status(options, found, epoch)


def _status(options: argparse.Namespace, found: Description, epoch: int) -> VerifierStatus:
    from edge_client.core.fleet.payloads import State, VerifierStatus, label

    load = found.load
    share = None if load is None or not load.max_sessions else min(1.0, load.num_sessions / load.max_sessions)
    draining = load is not None and load.draining
    return VerifierStatus(
        state=State.OFFLINE if draining else State.ONLINE,
        epoch=epoch,
        at=time.time(),
        endpoint=options.endpoint,
        region=label(options.region) or None,
        model=label(found.model) or None,
        fingerprint=found.fingerprint.hex()[:64] or None,
        load=share,
    )


def _sealed(
    options: argparse.Namespace, signer: Signer | None, status: VerifierStatus, lifetime: float
) -> bytes:
    from edge_client.core.fleet.record import encode

    return encode(status) if signer is None else signer.offer(options.name, status, lifetime)
