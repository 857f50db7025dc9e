"""What is told of the files by which a verifier and its edges know each other: when they end, and whether
newer ones could be used. Never what is in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

CERTIFICATE, TOKEN_KEYS, TENANT_LIMITS, DENIED = FILES = (
    "certificate",
    "token_keys",
    "tenant_limits",
    "denied",
)
"""Their names."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Counts are over all time, by the file's name."""

    expires_at: float = math.inf  # seconds since 1970, of the TLS certificate; infinite without one
    reloads: Mapping[str, int] = field(default_factory=dict)  # newer files that were taken
    failures: Mapping[str, int] = field(default_factory=dict)  # newer files that could not be used


NOTHING_TRUSTED = Trust()
