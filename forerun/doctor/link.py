"""Each verifier: can its name be found, can it be reached, is it who it says, and how far away is it?"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.address import host_and_port
from common.errors import ForerunError, UserError
from common.rpc.describe import Description
from edge_client.channel import VerifierChannel
from edge_client.config.sections import VerifierSection
from edge_client.paths import expand
from edge_client.tls import TlsSettings, explain
from forerun.doctor.finding import Finding, Level, fail, ok, skip, warn

PROBES = 20
PROBE_TIMEOUT = 1.0  # seconds
CONNECT_TIMEOUT = 3.0
DAY = 86_400.0  # seconds
SOON = 14  # days before a certificate's end that are told


@dataclass(frozen=True, slots=True)
class LinkFound:
    """A verifier and what was found out about the way to it."""

    address: str
    findings: tuple[Finding, ...]
    rtt: float | None = None  # seconds, the median; None: it does not answer

    @property
    def answers(self) -> bool:
        return self.rtt is not None


def tls_for(verifier: VerifierSection, address: str) -> TlsSettings | None:
    """As the daemon speaks to it."""
    if verifier.is_plain(address):
        return None
    files = (verifier.tls_ca, verifier.tls_cert, verifier.tls_key, verifier.token_file)
    ca, cert, key, token = map(_file, files)
    return TlsSettings(ca, cert, key, verifier.tls_server_name, token)


def check_link(address: str, tls: TlsSettings | None, probes: int = PROBES) -> LinkFound:
    """All checks of one verifier. Ends at the first that fails: those after it would fail, too."""
    found = host_and_port(address)
    if found is None:
        return LinkFound(address, (fail(f"{address}", "it is not of the form HOST:PORT"),))
    host, port = found[0].strip("[]"), found[1]
    findings = list[Finding]()
    for check in (_name, _connection):
        findings.append(check(address, host, port))
        if findings[-1].level is Level.FAIL:
            return LinkFound(address, tuple(findings))
    findings.append(_certificate(address, host, port, tls))
    if findings[-1].level is Level.FAIL:
        return LinkFound(address, tuple(findings))
    more, rtt = asyncio.run(_ask(address, tls, probes))
    return LinkFound(address, (*findings, *more), rtt)


def _name(address: str, host: str, port: int) -> Finding:
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return fail(f"{address} name", f"{host} cannot be found: {error}", "check the name and this network")
    places = ", ".join(sorted({str(each[4][0]) for each in found}))
    return ok(f"{address} name", f"{places} in {(time.monotonic() - began) * 1e3:.1f} ms")


def _connection(address: str, host: str, port: int) -> Finding:
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), CONNECT_TIMEOUT):
            took = time.monotonic() - began
    except OSError as error:
        return fail(
            f"{address} connection",
            f"no TCP connection: {error.strerror or error}",
            "is `forerun verify` running there, and no firewall in between?",
        )
    return ok(f"{address} connection", f"TCP in {took * 1e3:.1f} ms")


def _certificate(address: str, host: str, port: int, tls: TlsSettings | None) -> Finding:
    """The chain, the name and the end of its time. A verifier that wants a certificate of ours says so."""
    name = f"{address} TLS"
    try:
        wrong = asyncio.run(explain(host, port, tls))
        if wrong is not None:
            return fail(name, wrong)
        if tls is None:
            return skip(name, "it is spoken to without (verifier.insecure, or an address of this machine)")
        end = _end_of_certificate(host, port, tls)
    except UserError as error:
        return fail(name, str(error))
    except OSError as error:
        return fail(name, f"the handshake fails: {error}")
    days = (end - time.time()) / DAY
    if days < SOON:
        return warn(name, f"the certificate ends in {days:.0f} days", "renew it")
    return ok(name, f"the certificate is trusted, bears the name, and is good for {days:.0f} days")


def _end_of_certificate(host: str, port: int, tls: TlsSettings) -> float:
    """Seconds since 1970."""
    with (
        socket.create_connection((host, port), CONNECT_TIMEOUT) as plain,
        tls.context().wrap_socket(plain, server_hostname=tls.server_name or host) as secured,
    ):
        certificate = secured.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


async def _ask(address: str, tls: TlsSettings | None, probes: int) -> tuple[list[Finding], float | None]:
    """By gRPC: what it is, and round trips of the smallest question there is."""
    try:
        async with VerifierChannel(address, tls=tls) as channel:
            described = await channel.describe(patience=CONNECT_TIMEOUT)
            times, lost = await _probe(channel, probes)
    except ForerunError as error:
        return [fail(f"{address} gRPC", str(error))], None
    said = (described.model, f"{described.max_positions} positions", described.version)
    findings = [
        ok(f"{address} gRPC", ", ".join(filter(None, said))),
        *_longest(address, described),
        _load(address, described),
        skip(f"{address} clock", "a verifier does not tell its time, and nothing depends on it"),
        round_trips(address, times, lost),
    ]
    return findings, float(np.median(times)) if times else None


async def _probe(channel: VerifierChannel, probes: int) -> tuple[list[float], int]:
    """Seconds of each that was answered, and how many were not."""
    times, lost = list[float](), 0
    for _ in range(probes):
        began = time.perf_counter()
        try:
            await channel.describe(patience=PROBE_TIMEOUT)
            times.append(time.perf_counter() - began)
        except ForerunError:
            lost += 1
            if lost > probes // 4:
                break  # enough is known, and each costs a second
    return times, lost


def round_trips(address: str, times: Sequence[float], lost: int) -> Finding:
    """RTT, its jitter (mean difference between neighbours, RFC 3550 6.4.1 without its smoothing) and loss."""
    name, asked = f"{address} RTT", len(times) + lost
    if not times:
        return fail(name, f"none of {asked} probes was answered")
    in_ms = np.asarray(times) * 1e3
    least, usual, slow = in_ms.min(), *np.percentile(in_ms, (50, 95))
    jitter = float(np.abs(np.diff(in_ms)).mean()) if len(in_ms) > 1 else 0.0
    words = f"{least:.1f} ms at least, {usual:.1f} usually, {slow:.1f} at p95; jitter {jitter:.1f} ms"
    if lost:
        return warn(name, f"{words}; {lost} of {asked} probes got no answer", "the link loses packets")
    return ok(name, f"{words}; none of {asked} probes was lost")


def _longest(address: str, described: Description) -> list[Finding]:
    """What the verifier admits, where that is less than its model could read."""
    most = described.max_session_positions
    if most is None or most >= described.max_positions:
        return []
    words = (
        f"prompt and text together have {most} tokens at most: the verifier's KV slots hold no more of the "
        f"model's {described.max_positions} positions"
    )
    return [warn(f"{address} length", words, "start the verifier with more --slots for longer texts")]


def _load(address: str, described: Description) -> Finding:
    name, load = f"{address} load", described.load
    if load is None:
        return skip(name, "this verifier does not tell it")
    words = f"{load.num_sessions} sessions of {load.max_sessions or 'any number'}"
    if load.draining:
        return warn(name, f"{words}; it is going away and admits nobody")
    if load.max_sessions and load.num_sessions >= load.max_sessions:
        return warn(name, f"{words}; it is full", "another verifier beside it (verifier.addresses)")
    return ok(name, words)


def _file(path: str) -> Path | None:
    return expand(path) if path else None
