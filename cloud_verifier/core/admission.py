"""Whether a verifier can serve what an `Open` asks, and has room for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.target import TargetInfo
from cloud_verifier.core.tenants import Tenant
from common.acceptance import Acceptance, AcceptanceRule
from common.errors import CapacityError, Code, PeerError, UnavailableError, UserError
from common.messages import Open


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the driver knows it: never from what the edge says of itself."""

    tenant: str = ""  # whose limits and whose cache; all that are not told apart are one
    deadline_at: float | None = None  # seconds; nobody waits for an answer after this
    connection: str = ""  # what it came on; those of one tenant take turns where one has to wait


ANYBODY = Caller()


@dataclass(frozen=True, slots=True)
class Need:
    """KV slots that a session asks for."""

    most: int  # if it writes all that it may
    promised: int  # at admission


def check_deadline(caller: Caller, now: float) -> None:
    """Raise `UnavailableError` if its caller waits no longer."""
    if caller.deadline_at is not None and caller.deadline_at <= now:
        raise UnavailableError("the call's deadline has passed", Code.DEADLINE_EXCEEDED)


def need_of(request: Open, config: SchedulerConfig) -> Need:
    """Its prompt, its text and the nodes of a step; of the text what it has and as much as is promised."""
    written = len(request.prompt) + len(request.committed)
    left = request.sampling.max_tokens - len(request.committed)
    nodes = config.max_nodes_per_session
    return Need(written + left + nodes, written + min(left, config.promised_text) + nodes)


def longest_session(max_positions: int, num_slots: int, config: SchedulerConfig) -> int:
    """Positions of prompt and text that a verifier admits at most; 0 where no session fits its slots."""
    return max(0, min(max_positions, num_slots - config.max_nodes_per_session))


def check_need(need: Need, num_slots: int) -> None:
    """Raise `UserError` if the session could not even end if it were alone."""
    if need.most > num_slots:
        raise UserError(
            f"this session may need {need.most} KV slots and the verifier has {num_slots} in all; "
            "shorten the prompt or ask for fewer max_tokens",
            Code.OUT_OF_RANGE,
        )


def check_room(
    need: Need, config: SchedulerConfig, num_slots: int, num_sessions: int, tenant: Tenant
) -> None:
    """Raise `CapacityError` if the verifier or the tenant has as many sessions as it may, or the tenant holds
    as many slots."""
    if num_sessions >= config.max_sessions:
        raise CapacityError(f"all {config.max_sessions} sessions of this verifier are taken; try later")
    share = config.max_tenant_share
    if share == 1:
        return
    if tenant.num_sessions + 1 > max(1, int(share * config.max_sessions)):
        raise CapacityError(
            f"this tenant has {tenant.num_sessions} sessions here, as many as one may; try later"
        )
    if tenant.num_sessions and tenant.num_slots + need.promised > share * num_slots:
        raise CapacityError(
            f"this tenant holds {tenant.num_slots} KV slots here and may hold {int(share * num_slots)}; "
            "try later"
        )


def check_draining(draining: bool) -> None:
    """Raise `UnavailableError` if nobody is admitted any more."""
    if draining:
        raise UnavailableError("this verifier is draining; reconnect to another one")


def check_open(request: Open, info: TargetInfo, draining: bool) -> None:
    """Raise the `ForerunError` that says why `request` cannot be served by the target of `info`."""
    check_draining(draining)
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


def check_count(num_prompt: int, num_committed: int, limit: int) -> None:
    """Raise `UserError` for more tokens than the target has positions, before any of them is looked at: a
    million take long enough that others would notice."""
    if num_prompt + num_committed > limit:
        raise UserError(
            f"{num_prompt + num_committed} tokens of prompt and text exceed the target's {limit} positions; "
            "shorten the prompt",
            Code.OUT_OF_RANGE,
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
