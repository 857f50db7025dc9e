"""All checks, in an order in which each can use what those before it have found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from common.errors import UserError
from edge_client.config.schema import EdgeConfig
from edge_client.config.sections import VerifierSection
from edge_client.paths import EdgePaths, expand
from forerun.doctor.broker import check_fleet
from forerun.doctor.child import Asked
from forerun.doctor.draft import Told, ask_child, check_child, find_file
from forerun.doctor.finding import Finding, fail
from forerun.doctor.link import LinkFound, check_link, tls_for
from forerun.doctor.machine import check_disk, check_python
from forerun.doctor.outlook import Measured, check_outlook
from forerun.doctor.places import check_daemon, check_token

Progress = Callable[[str], None]

CONTEXT = 2048  # tokens, where the configuration says: as trained


@dataclass(frozen=True, slots=True)
class Given:
    """What a person knows better than a measurement. Times in seconds."""

    rtt: float | None = None
    step_time: float | None = None
    draft_time: float | None = None
    acceptance: float | None = None


def examine(
    config: EdgeConfig, paths: EdgePaths, given: Given, progress: Progress = lambda text: None
) -> Iterator[Finding]:
    """Every finding as it is made."""
    yield check_python()
    yield check_disk(paths.state)
    yield check_token(config.api, paths)
    yield check_daemon(config.api, paths)
    progress("asking the verifiers")
    links = list[LinkFound]()
    for address in config.verifier.addresses:
        links.append(_link(config.verifier, address))
        yield from links[-1].findings
    nearest = min((each for each in links if each.rtt is not None), key=_rtt, default=None)
    progress("loading the draft")
    path, findings = find_file(config.draft, paths.models)
    yield from findings
    asked = _asked(config, path, nearest.address if nearest is not None else "")
    told = ask_child(asked)
    yield from check_child(asked, told)
    progress("asking the broker")
    yield from check_fleet(config.fleet, paths.state)
    progress("looking ahead")
    yield check_outlook(measured(told, nearest, given))[0]


def measured(told: Told, nearest: LinkFound | None, given: Given) -> Measured:
    """What is known of everything, the person's word first."""
    draft_ms, right, of = (
        told.number("steps", "step_ms"),
        told.number("rank", "right"),
        told.number("rank", "of"),
    )
    found = Measured(
        rtt=nearest.rtt if nearest is not None else None,
        step_time=told.plain["step_ms"] / 1e3 if told.plain is not None and told.plain["step_ms"] else None,
        draft_time=draft_ms / 1e3 if draft_ms is not None else None,
        acceptance=right / of if right is not None and of else None,
        rows=told.table("pace", "rows"),
        reads=told.table("pace", "reads"),
        seen=_speedup(told),
    )
    names = ("rtt", "step_time", "draft_time", "acceptance")
    return replace(
        found, **{name: getattr(given, name) for name in names if getattr(given, name) is not None}
    )


def _speedup(told: Told) -> float | None:
    """Of the text with drafts over the one without; None: there are not both."""
    if told.plain is None or told.drafted is None or not told.drafted["ms_per_token"]:
        return None
    return float(told.plain["ms_per_token"] / told.drafted["ms_per_token"])


def _link(verifier: VerifierSection, address: str) -> LinkFound:
    try:
        return check_link(address, tls_for(verifier, address))
    except UserError as error:
        return LinkFound(address, (fail(address, str(error)),))


def _rtt(link: LinkFound) -> float:
    assert link.rtt is not None, "only those that answer are compared"
    return link.rtt


def _asked(config: EdgeConfig, path: str, address: str) -> Asked:
    draft, verifier = config.draft, config.verifier
    files = (verifier.tls_ca, verifier.tls_cert, verifier.tls_key, verifier.token_file)
    ca, cert, key, token = (str(expand(each)) if each else "" for each in files)
    return Asked(
        path=path,
        context=draft.context or CONTEXT,
        threads=draft.threads,
        gpu_layers=draft.gpu_layers,
        address=address,
        ca=ca,
        cert=cert,
        key=key,
        server_name=verifier.tls_server_name,
        token_file=token,
        plain=not address or verifier.is_plain(address),
    )
