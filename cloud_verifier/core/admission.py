"""Whether a verifier can serve what an `Open` asks: every reason to refuse it that needs no other session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloud_verifier.core.target import TargetInfo
from common.acceptance import Acceptance, AcceptanceRule
from common.errors import Code, PeerError, UnavailableError, UserError
from common.messages import Open


def check_open(request: Open, info: TargetInfo, draining: bool) -> None:
    """Raise the `ForerunError` that says why `request` cannot be served by the target of `info`."""
    if draining:
        raise UnavailableError("this verifier is draining; reconnect to another one")
    if request.model and request.model != info.name:
        message = f"model {request.model!r} is not served here; this is {info.name!r}"
        raise UserError(message, Code.NOT_FOUND)
    if request.fingerprint != info.fingerprint:
        raise UserError(
            f"tokenizer mismatch: the edge's fingerprint is {request.fingerprint.hex()}, the target's "
            f"{info.fingerprint.hex()}; use a draft model with the target's tokenizer",
            Code.FAILED_PRECONDITION,
        )
    _check_length(request, info.max_positions)
    _check_tokens(request, info.vocab_size)


def check_acceptance(wanted: Acceptance, allowed: Sequence[AcceptanceRule]) -> None:
    """Raise `UserError` unless the operator allows the rule that a session asks for."""
    if wanted.rule in allowed:
        return
    kind = "" if wanted.rule.lossless else "lossy "
    raise UserError(
        f"the {kind}acceptance rule {wanted.rule.title} is not allowed on this verifier; it allows "
        f"{', '.join(rule.title for rule in allowed)}",
        Code.FAILED_PRECONDITION,
    )


def _check_length(request: Open, limit: int) -> None:
    prompt, text = len(request.prompt), request.sampling.max_tokens
    if not prompt:
        raise UserError("the prompt is empty; at least one token is needed")
    if prompt + text > limit:
        raise UserError(
            f"prompt of {prompt} tokens and max_tokens {text} exceed the target's {limit} positions; "
            "shorten the prompt or ask for less",
            Code.OUT_OF_RANGE,
        )
    if len(request.committed) > text:
        message = f"{len(request.committed)} committed tokens exceed max_tokens {text}"
        raise PeerError(message, Code.OUT_OF_RANGE)


def _check_tokens(request: Open, vocab_size: int) -> None:
    sampling = request.sampling
    biased = [token for token, _ in sampling.logit_bias]
    named = (("prompt", request.prompt), ("committed", request.committed), ("logit_bias", biased))
    for name, tokens in (*named, ("stop_token_ids", sampling.stop_token_ids)):
        _check_in_vocabulary(name, tokens, vocab_size)


def _check_in_vocabulary(name: str, tokens: Iterable[int], size: int) -> None:
    outside = next((token for token in tokens if not 0 <= token < size), None)
    if outside is not None:
        message = f"{name} holds token id {outside}; this target's vocabulary has ids 0 to {size - 1}"
        raise UserError(message, Code.OUT_OF_RANGE)
