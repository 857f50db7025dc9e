"""Read server-sent events of an engine's HTTP interface."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from common.errors import LocalError, UnavailableError

MOST_SAID = 500  # characters of an engine's error that are passed on

TIMES = httpx.Timeout(10.0, read=None)
"""Seconds to connect and to send. A busy engine may be silent for as long as it likes."""


def connect(url: str, token: str = "") -> httpx.AsyncClient:
    """Return a client of the engine at `url`; `token` is the engine's API key, empty for none."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    limits = httpx.Limits(max_connections=None)  # the scheduler bounds the number of sessions
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMES, limits=limits, trust_env=False)


async def events(
    http: httpx.AsyncClient, path: str, body: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Post `body` and yield each event until `[DONE]`. Closing the generator closes the connection, by which
    both engines abort the request. Raises `UnavailableError` without an engine, `LocalError` for a refusal.
    """
    try:
        async with http.stream("POST", path, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                said = (await answer.aread()).decode(errors="replace")[:MOST_SAID]
                raise LocalError(f"the engine refused {path} ({answer.status_code}): {said}")
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise LocalError(f"the engine failed: {str(event['error'])[:MOST_SAID]}")
                    yield event
    except httpx.HTTPError as error:
        raise UnavailableError(f"the engine cannot be reached: {error}") from error
