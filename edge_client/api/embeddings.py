"""Passes requests for embeddings on to another server, which a setting names."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.grammar.trial import in_thread
from edge_client.formats.api_error import ApiError
from edge_client.process.paths import read_token

MOST_BYTES = 64 * 2**20
"""Bytes of a response: some 3,000 vectors of 1,024 numbers as text."""

AT_ONCE = 4
"""Requests at once, each in a thread. Others wait."""


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Returns redirects to the caller and follows none."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


PASSED_ON = (400, 404, 413, 422, 429)
"""Statuses that are the client's affair. Others are the server's or the settings'."""


@dataclass(frozen=True, slots=True)
class Embedder:
    """Asks the server at `url`, which must speak OpenAI's `/v1/embeddings`.

    It gets the token of `token_file` and never the daemon's own. A request takes at most `timeout` seconds.
    """

    url: str
    token_file: Path | None = None
    timeout: float = 60.0
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), compare=False)

    async def ask(self, body: dict[str, Any]) -> bytes:
        """Return the server's JSON. Raises `ApiError`."""
        found = list[bytes]()
        try:
            async with asyncio.timeout(2 * self.timeout), self._places:  # in the queue, too
                await in_thread(lambda: found.append(self._ask(body)), "embeddings")
                return found[0]
        except TimeoutError as error:
            raise _failed(f"it did not answer within {self.timeout:g} s", 504) from error

    def _ask(self, body: dict[str, Any]) -> bytes:
        """Send the request and read the response, in a thread."""
        headers = {"User-Agent": "forerun", "Content-Type": "application/json"}
        if self.token_file is not None:
            try:
                headers["Authorization"] = f"Bearer {read_token(self.token_file)}"
            except UserError as error:
                raise _failed(str(error)) from error
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.build_opener(_StayHere).open(request, timeout=self.timeout) as response:
                return _checked(self._read(response))
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error) from error
        except TimeoutError as error:
            raise _failed(f"it did not answer within {self.timeout:g} s", 504) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failed(str(getattr(error, "reason", None) or error)) from error

    def _read(self, response: Any) -> bytes:
        """Return the body. Raises `ApiError` for one that is too long, `TimeoutError` for a slow one."""
        data, ends_at = bytearray(), time.monotonic() + self.timeout
        while piece := response.read1(2**16):
            data += piece
            if len(data) > MOST_BYTES:
                raise _failed(f"its response has more than {MOST_BYTES} bytes")
            if time.monotonic() > ends_at:
                raise TimeoutError
        return bytes(data)


def _checked(data: bytes) -> bytes:
    """Return the data, which must be a JSON object."""
    try:
        if isinstance(json.loads(data), dict):
            return data
    except (ValueError, RecursionError):
        pass
    raise _failed("its response is no JSON object")


def _refused(error: urllib.error.HTTPError) -> ApiError:
    """Return the server's refusal, with its own words if it is the client's affair."""
    if error.code not in PASSED_ON:
        return _failed(f"it answered {error.code}")
    words: Any = error.reason
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, RecursionError):
        found = json.loads(error.read(2**16))
        told = found.get("error", words) if isinstance(found, dict) else words
        words = told.get("message", words) if isinstance(told, dict) else told
    return ApiError(error.code, f"the embeddings server refuses the request: {str(words)[:1000]}")


def _failed(why: str, status: int = 502) -> ApiError:
    words = f"the embeddings server (api.embeddings_url) failed: {why}"
    return ApiError(status, words, kind="server_error", code="embeddings_failed")
