"""Errors in OpenAI's shape: a status, and a body that names the fault, the field and the code."""

from __future__ import annotations

import logging
import math
from typing import Any
from urllib.parse import quote

from common.errors import (
    NOT_LET_IN,
    CapacityError,
    Code,
    ForerunError,
    PeerError,
    UnavailableError,
    UserError,
)

logger = logging.getLogger(__name__)

RETRY_AFTER = 1
"""Seconds in `Retry-After` without a better estimate."""

CONTEXT_LENGTH, TOO_LONG = "This model's maximum context length", "context_length_exceeded"
"""OpenAI's message, which clients match, and code for a text that does not fit."""

STOPPING = "daemon_stopping"
"""Code of the error that ends texts when the daemon stops. Clients may ask the next one."""


class ApiError(Exception):
    """Ends a request. `kind` and `code` are OpenAI's words; `param` is the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """Return the JSON of a response or of a stream's last event."""
        return {
            "error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code},
        }

    @property
    def headers(self) -> dict[str, str]:
        headers = {"retry-after": str(math.ceil(self.retry_after))} if self.retry_after is not None else {}
        return headers | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def wrong(param: str, message: str, code: str | None = None) -> ApiError:
    """Return the error of a field that its sender must change."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, message: str) -> ApiError:
    """Return the error of OpenAI's field that this daemon does not support."""
    return wrong(param, message, "unsupported_parameter")


def exceeds_context(param: str, longest: int, why: str) -> ApiError:
    """Return the error of a text that exceeds the context of `longest` tokens.

    Clients know it by OpenAI's code, or by the words "maximum context length" (litellm, aider).
    """
    return wrong(param, f"{CONTEXT_LENGTH} is {longest} tokens. However, {why}.", TOO_LONG)


def too_many_tokens(param: str, longest: int, num_prompt: int, num_asked: int | None) -> ApiError:
    """Return the error of a prompt and a text that together exceed the context."""
    wanted, advice = f"your prompt has {num_prompt} tokens", "shorten it"
    if num_asked is not None:
        wanted = (
            f"you requested {num_prompt + num_asked} tokens ({num_prompt} in the {param}, {num_asked} in the "
            "completion)"
        )
        advice = f"shorten the {param} or ask for fewer max_tokens"
    return exceeds_context(param, longest, f"{wanted}; {advice}")


def too_long(limit: float) -> ApiError:
    """Return the error of a text that is not whole after `limit` seconds."""
    return _ours(504, f"the text took longer than {limit:g} s (api.request_timeout)", "timeout")


def stopping() -> ApiError:
    """Return the error of a text that the daemon's stop breaks off."""
    words = "the daemon is stopping and the text is incomplete; repeat the request when it runs again"
    return _ours(503, words, STOPPING, RETRY_AFTER)


def api_error(error: Exception) -> ApiError:
    """Return the API's form of an error. The message of a defect stays in the log."""
    match error:
        case ApiError():
            return error
        case UserError() if error.code in NOT_LET_IN:
            # The verifier refused the edge's own token. A 401 would point at this API's token.
            return _ours(502, str(error), error.code.value.lower())
        case UserError() if error.code is Code.OUT_OF_RANGE:  # tokens' ids were compared before
            return ApiError(400, f"{CONTEXT_LENGTH} is exceeded: {error}", code=TOO_LONG)
        case UserError():
            status = 404 if error.code is Code.NOT_FOUND else 400
            return ApiError(status, str(error), code=error.code.value.lower())
        case CapacityError():
            return _no_room(error, error.retry_after or RETRY_AFTER)
        case UnavailableError():
            return _ours(503, str(error), "verifier_unavailable", RETRY_AFTER)
        case PeerError():
            return _ours(502, str(error), "verifier_at_fault")
        case ForerunError():
            return _ours(500, str(error), "internal_error")
        case _:
            return _ours(500, "a defect of this daemon; its log has details", "internal_error")


def _no_room(error: CapacityError, wait: float) -> ApiError:
    """Return the error of a full queue, or of a device that is too slow now (`UNAVAILABLE`)."""
    if error.code is Code.UNAVAILABLE:
        return _ours(503, str(error), "busy", wait)
    return ApiError(429, str(error), kind="rate_limit_error", code="no_capacity", retry_after=wait)


def log_refusal(method: str, path: str, error: ApiError, request: str = "") -> None:
    """Log a request that gets an error. The message of a client's error may quote a text and is left out."""
    told = (error.status, error.code or error.kind, f": {error}" if error.status >= 500 else "")
    extra = {"fields": {"request": request}} if request else None
    logger.info("x %s %s: %d %s%s", method, quote(path)[:200], *told, extra=extra)


def _ours(status: int, message: str, code: str, retry_after: float | None = None) -> ApiError:
    return ApiError(status, message, kind="server_error", code=code, retry_after=retry_after)
