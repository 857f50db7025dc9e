"""Errors as OpenAI's clients read them: a status, and a body that says whose fault it is and where."""

from __future__ import annotations

import math
from typing import Any

from common.errors import (
    NOT_LET_IN,
    CapacityError,
    Code,
    ForerunError,
    PeerError,
    UnavailableError,
    UserError,
)

RETRY_AFTER = 1
"""Seconds told where nobody knows better."""


class ApiError(Exception):
    """A request ends with this. `kind` and `code` are OpenAI's words, `param` the field in question."""

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
        """What is sent, as a response or within a stream."""
        return {
            "error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code},
        }

    @property
    def headers(self) -> dict[str, str]:
        """Beside the body."""
        found = {"retry-after": str(math.ceil(self.retry_after))} if self.retry_after is not None else {}
        return found | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def wrong(param: str, message: str, code: str | None = None) -> ApiError:
    """A field that its sender must change."""
    return ApiError(400, message, param=param, code=code)


def too_many_tokens(param: str, longest: int, num_prompt: int, num_asked: int | None) -> ApiError:
    """A prompt and a text that together exceed the context. Clients know this error by OpenAI's code, or by
    the words "maximum context length" (litellm, aider)."""
    wanted, advice = f"your prompt has {num_prompt} tokens", "shorten it"
    if num_asked is not None:
        wanted = (
            f"you requested {num_prompt + num_asked} tokens ({num_prompt} in the {param}, {num_asked} in the "
            "completion)"
        )
        advice = f"shorten the {param} or ask for fewer max_tokens"
    return wrong(param, f"{CONTEXT_LENGTH} is {longest} tokens. However, {wanted}; {advice}.", TOO_LONG)


def unsupported(param: str, message: str) -> ApiError:
    """A field that is known and that this daemon does not do."""
    return wrong(param, message, "unsupported_parameter")


def too_long(limit: float) -> ApiError:
    """A text that is not whole after `limit` seconds."""
    return ApiError(
        504,
        f"the text took longer than {limit:g} s (api.request_timeout)",
        kind="server_error",
        code="timeout",
    )


CONTEXT_LENGTH, TOO_LONG = "This model's maximum context length", "context_length_exceeded"
"""OpenAI's words for a text that does not fit, which clients look for, and its code."""

STOPPING = "daemon_stopping"
"""Code of what ends texts when the daemon ends. `forerun chat` waits for the next daemon then."""


def stopping() -> ApiError:
    """A text that the end of the daemon breaks off."""
    words = "the daemon is stopping, and the text is not whole; ask again when it runs"
    return ApiError(503, words, kind="server_error", code=STOPPING, retry_after=RETRY_AFTER)


def api_error(error: Exception) -> ApiError:
    """How an error of ours is told. A defect's own words stay in the log."""
    match error:
        case ApiError():
            return error
        case UserError() if error.code in NOT_LET_IN:
            # By the verifier, to which a client brings no token. A 401 would make people look at this API's.
            return ApiError(502, str(error), kind="server_error", code=error.code.value.lower())
        case UserError() if error.code is Code.OUT_OF_RANGE:  # tokens' ids were compared before
            return ApiError(400, f"{CONTEXT_LENGTH} is exceeded: {error}", code=TOO_LONG)
        case UserError():
            status = 404 if error.code is Code.NOT_FOUND else 400
            return ApiError(status, str(error), code=error.code.value.lower())
        case CapacityError():
            wait = error.retry_after or RETRY_AFTER
            return ApiError(429, str(error), kind="rate_limit_error", code="no_capacity", retry_after=wait)
        case UnavailableError():
            return ApiError(
                503, str(error), kind="server_error", code="verifier_unavailable", retry_after=RETRY_AFTER
            )
        case PeerError():
            return ApiError(502, str(error), kind="server_error", code="verifier_at_fault")
        case ForerunError():
            return ApiError(500, str(error), kind="server_error", code="internal_error")
        case _:
            return ApiError(
                500, "a defect of this daemon; its log has more", kind="server_error", code="internal_error"
            )
