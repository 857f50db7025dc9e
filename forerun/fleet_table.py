"""Tables of `forerun fleet`: who is there, and which verifiers offer themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_client.core.fleet.payloads import Presence, VerifierStatus

DEVICE_TITLES = ("DEVICE", "STATE", "MODE", "DRAFT", "VERIFIER", "VERSION", "SINCE")
OFFER_TITLES = ("VERIFIER", "STATE", "ENDPOINT", "REGION", "MODEL", "LOAD", "SIGNED", "SINCE")


def device_table(devices: Sequence[tuple[str, Presence]], now: float) -> list[str]:
    """A line each; `now` is seconds since 1970."""
    if not devices:
        return ["no device has been born here; is the tenant right, and may this client read status topics?"]
    return _aligned([DEVICE_TITLES, *(_device(name, found, now) for name, found in devices)])


def device_line(name: str, found: Presence, now: float) -> str:
    """Of one device, for a live view."""
    return "  ".join(_device(name, found, now))


def offer_table(offers: Mapping[str, tuple[VerifierStatus, bool]], now: float) -> list[str]:
    """A line each; `now` is seconds since 1970."""
    if not offers:
        return ["no verifier offers itself; `forerun fleet announce` does it for one"]
    rows = [
        (
            name,
            status.state.value,
            status.endpoint or "-",
            status.region or "-",
            status.model or "-",
            "-" if status.load is None else f"{status.load:.0%}",
            "yes" if signed else "no",
            age(now - status.at),
        )
        for name, (status, signed) in sorted(offers.items())
    ]
    return _aligned([OFFER_TITLES, *rows])


def age(seconds: float) -> str:
    """12s, 3m, 5h, 2d: how long ago by this machine's clock."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def _device(name: str, found: Presence, now: float) -> tuple[str, ...]:
    mode = found.mode.value if found.mode else "-"
    told = (found.draft or "-", found.verifier or "-", found.version or "-")
    return (name, found.state.value, mode, *told, age(now - found.at))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
