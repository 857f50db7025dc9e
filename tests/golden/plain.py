"""Values of the machines without the names of their classes, fields and words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from common.errors import ForerunError
from common.messages import ClientMessage, ServerMessage
from common.rpc.codec import encode_request, encode_response
from edge_client.core.policies.governor import Standing

DIGITS = 9
"""Of numbers that are no whole ones: the last ones differ between processors."""


def plain(value: Any) -> Any:
    """JSON of a value: of a message its bytes, of an error its code, of a standing its mode alone. Raises
    `TypeError` for what it does not know."""
    match value:
        case None | bool() | int() | str():
            found: Any = value
        case float():
            found = f"{value:.{DIGITS}g}"
        case Enum():
            found = value.value
        case bytes():
            found = value.hex()
        case ForerunError():
            found = value.code.name
        case Standing():
            found = value.mode.value
        case np.ndarray() | np.generic():
            found = plain(value.tolist())
        case list() | tuple():
            found = [plain(each) for each in value]
        case Mapping():
            found = [[plain(key), plain(each)] for key, each in value.items()]
        case _ if isinstance(value, ClientMessage):
            found = encode_request(value).SerializeToString(deterministic=True).hex()
        case _ if isinstance(value, ServerMessage):
            found = encode_response(value).SerializeToString(deterministic=True).hex()
        case _ if is_dataclass(value):
            found = [plain(getattr(value, each.name)) for each in fields(value)]
        case _:
            raise TypeError(f"golden records know no {type(value).__name__}")
    return found


def digest(value: Any) -> str:
    """Of what `plain` makes of it."""
    return hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest()[:16]
