"""Checks each verifier: its connection, certificate, answer and round-trip times."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from common.errors import Code, ForerunError, UserError
from common.wire.describe import Description
from edge_client.network.addresses import parse_address
from edge_client.network.channel import VerifierChannel
from edge_client.network.client_tls import TlsSettings, explain
from edge_client.process.paths import expand
from edge_client.settings import VerifierSection
from forerun.doctor.device import REMEDIES, SAYS_IT, Finding, Level, fail, ok, refused, skip, warn

PROBES = 20
PROBE_TIMEOUT = 1.0  # seconds
CONNECT_TIMEOUT = 3.0
DAY = 86_400.0  # seconds
SOON = 14  # days before a certificate's end that cause a warning
LAST_THIRD = 1 / 3  # of a shorter life, when clients of ACME renew


@dataclass(frozen=True, slots=True)
class LinkFound:
    """Holds a verifier's address and the findings about its link."""

    address: str
    findings: tuple[Finding, ...]
    rtt: float | None = None  # seconds, the median; None: it does not answer
    step_times: Mapping[int, float] = field(default_factory=dict)  # seconds of a target step by rows, if told


def tls_for(verifier: VerifierSection, address: str) -> TlsSettings | None:
    """Return the TLS settings that the daemon uses for this address; None for plain text."""
    if verifier.is_plain(address):
        return None
    files = (verifier.tls_ca, verifier.tls_cert, verifier.tls_key, verifier.token_file)
    ca, cert, key, token = (expand(each) if each else None for each in files)
    return TlsSettings(ca, cert, key, verifier.tls_server_name, token)


def check_link(address: str, tls: TlsSettings | None, probes: int = PROBES) -> LinkFound:
    """Run all checks of one verifier, up to the first that fails."""
    try:
        place = parse_address(address, insecure=True)
    except UserError as error:
        return LinkFound(address, (fail(address, str(error), SAYS_IT),))
    host, port = place.bare_host, place.port
    findings = list[Finding]()
    for check in (_connection, partial(_certificate, tls=tls)):
        findings.append(check(address, host, port))
        if findings[-1].level is Level.FAIL:
            return LinkFound(address, tuple(findings))
    asked = asyncio.run(_ask(address, tls, probes))
    return replace(asked, findings=(*findings, *asked.findings))


def _connection(address: str, host: str, port: int) -> Finding:
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), CONNECT_TIMEOUT):
            took = time.monotonic() - began
    except (socket.gaierror, UnicodeError) as error:
        words = f"{host} cannot be found: {error}"
        return fail(f"{address} connection", words, "check the name and this network")
    except OSError as error:
        return fail(
            f"{address} connection",
            f"no TCP connection: {error.strerror or error}",
            "check that `forerun verify` runs there and that no firewall blocks it",
        )
    return ok(f"{address} connection", f"TCP in {took * 1e3:.1f} ms")


def _certificate(address: str, host: str, port: int, tls: TlsSettings | None) -> Finding:
    """Check the certificate's chain, name and end. A verifier that requires our certificate reports it."""
    name = f"{address} TLS"
    try:
        wrong = asyncio.run(explain(host, port, tls))
        if wrong is not None:
            return fail(name, wrong, SAYS_IT)
        if tls is None:
            return skip(name, "none is used (verifier.insecure, or an address of this machine)")
        begin, end = _life_of_certificate(host, port, tls)
    except UserError as error:
        return fail(name, str(error), SAYS_IT)
    except OSError as error:
        return fail(name, f"the handshake fails: {error}", REMEDIES[Code.UNAVAILABLE])
    days = (end - time.time()) / DAY
    if days < min(SOON, (end - begin) / DAY * LAST_THIRD):
        return warn(name, f"the certificate ends in {days:.0f} days", "renew it")
    return ok(name, f"the certificate is trusted, bears the name, and is good for {days:.0f} days")


def _life_of_certificate(host: str, port: int, tls: TlsSettings) -> tuple[float, float]:
    """Return the certificate's begin and end in seconds since 1970."""
    with (
        socket.create_connection((host, port), CONNECT_TIMEOUT) as plain,
        tls.context().wrap_socket(plain, server_hostname=tls.server_name or host) as secured,
    ):
        certificate = secured.getpeercert() or {}
    begin, end = (ssl.cert_time_to_seconds(str(certificate[each])) for each in ("notBefore", "notAfter"))
    return begin, end


async def _ask(address: str, tls: TlsSettings | None, probes: int) -> LinkFound:
    """Ask the verifier by gRPC for its description, and time the smallest request."""
    try:
        async with VerifierChannel(address, tls=tls) as channel:
            described = await channel.describe(patience=CONNECT_TIMEOUT)
            times, lost = await _probe(channel, probes)
    except ForerunError as error:
        return LinkFound(address, (refused(f"{address} gRPC", error),))
    said = (described.model, f"{described.max_positions} positions", described.version)
    findings = (
        ok(f"{address} gRPC", ", ".join(filter(None, said))),
        *_longest(address, described),
        _load(address, described),
        round_trips(address, times, lost),
    )
    steps = {rows: 1e-6 * time for rows, time in described.step_times}
    return LinkFound(address, findings, float(np.median(times)) if times else None, steps)


async def _probe(channel: VerifierChannel, probes: int) -> tuple[list[float], int]:
    """Return the seconds of each answered probe, and the number of lost ones."""
    times, lost = list[float](), 0
    for _ in range(probes):
        began = time.perf_counter()
        try:
            await channel.describe(patience=PROBE_TIMEOUT)
            times.append(time.perf_counter() - began)
        except ForerunError:
            lost += 1
            if lost > probes // 4:
                break  # enough is known, and each lost probe costs a second
    return times, lost


def round_trips(address: str, times: Sequence[float], lost: int) -> Finding:
    """Report RTT, jitter (mean difference of neighbours, RFC 3550 6.4.1 without smoothing) and loss."""
    name, asked = f"{address} RTT", len(times) + lost
    if not times:
        return fail(name, f"none of {asked} probes was answered", REMEDIES[Code.DEADLINE_EXCEEDED])
    in_ms = np.asarray(times) * 1e3
    least, usual, slow = in_ms.min(), *np.percentile(in_ms, (50, 95))
    jitter = float(np.abs(np.diff(in_ms)).mean()) if len(in_ms) > 1 else 0.0
    words = f"{least:.1f} ms at least, {usual:.1f} usually, {slow:.1f} at p95; jitter {jitter:.1f} ms"
    if lost:
        return warn(name, f"{words}; {lost} of {asked} probes got no answer", "the link loses packets")
    return ok(name, f"{words}; none of {asked} probes was lost")


def _longest(address: str, described: Description) -> list[Finding]:
    """Warn if the verifier admits fewer tokens than its model could read."""
    most = described.max_session_positions
    if most is None or most >= described.max_positions:
        return []
    words = (
        f"prompt and text together have {most} tokens at most: the verifier's KV slots hold no more of the "
        f"model's {described.max_positions} positions"
    )
    return [warn(f"{address} length", words, "start `forerun verify` with more --slots for longer texts")]


def _load(address: str, described: Description) -> Finding:
    name, load = f"{address} load", described.load
    if load is None:
        return skip(name, "this verifier does not report it")
    words = f"{load.num_sessions} sessions of {load.max_sessions or 'any number'}"
    if load.draining:
        advice = "wait until it is back, or add another verifier (verifier.addresses)"
        return warn(name, f"{words}; it is draining and admits no sessions", advice)
    if load.max_sessions and load.num_sessions >= load.max_sessions:
        return warn(name, f"{words}; it is full", "add another verifier (verifier.addresses)")
    return ok(name, words)
