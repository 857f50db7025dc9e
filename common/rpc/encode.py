"""Messages to protobuf. What our own side made is trusted: a number outside its field is a defect of ours.

Such a defect shows as `ValueError` from protobuf. Fields at their default are left out, which protobuf does
by itself for all but the `optional` ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from common.acceptance import COUPLED, PARAMETERS, Acceptance, AcceptanceRule
from common.draft import Draft
from common.messages import (
    ClientMessage,
    Close,
    Commit,
    Drain,
    Finish,
    Open,
    Opened,
    Propose,
    ServerMessage,
)
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.sampling import SamplingParams

MAX_US = 2**32 - 1
"""Where times saturate: 71 minutes, after which nobody measures a round trip."""

_DEFAULTS = SamplingParams()


def encode_request(message: ClientMessage) -> pb.SessionRequest:
    """What the edge sends."""
    match message:
        case Propose():
            request = pb.SessionRequest()
            _fill_propose(request.propose, message)
            return request
        case Open():
            return pb.SessionRequest(open=_open(message))
        case Close():
            return pb.SessionRequest(close=pb.Close())
        case _:
            assert_never(message)


def encode_response(message: ServerMessage) -> pb.SessionResponse:
    """What the verifier sends."""
    match message:
        case Commit():
            response = pb.SessionResponse()
            _fill_commit(response.commit, message)
            return response
        case Opened():
            return pb.SessionResponse(opened=_opened(message))
        case Drain():
            return pb.SessionResponse(drain=pb.Drain(grace_us=_us(message.grace_us)))
        case Finish():
            return pb.SessionResponse(finish=_finish(message))
        case _:
            assert_never(message)


def encode_sampling(sampling: SamplingParams) -> pb.Sampling:
    """Sampling parameters; those at their default are absent."""
    return pb.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=_unless(sampling.top_p, _DEFAULTS.top_p),
        min_p=sampling.min_p,
        repetition_penalty=_unless(sampling.repetition_penalty, _DEFAULTS.repetition_penalty),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=[pb.LogitBias(token=token, bias=bias) for token, bias in sampling.logit_bias],
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        max_tokens=None if sampling.max_tokens == _DEFAULTS.max_tokens else sampling.max_tokens,
        seed=sampling.seed,
        grammar=sampling.grammar,
    )


def encode_rule(rule: AcceptanceRule) -> str:
    """A rule's name on the wire."""
    return pb.AcceptanceRule.Name(rule.value)


def encode_acceptance(acceptance: Acceptance) -> pb.Acceptance:
    """A rule, with what can be set about it."""
    names = PARAMETERS.get(acceptance.rule, ())
    settings = {name: getattr(acceptance, name) for name in names}
    return pb.Acceptance(rule=encode_rule(acceptance.rule), **settings)


def _open(message: Open) -> pb.Open:
    return pb.Open(
        prompt=message.prompt,
        sampling=encode_sampling(message.sampling),
        fingerprint=message.fingerprint,
        model=message.model,
        committed=message.committed,
        fill=None if message.fill else False,
        session_id=message.session_id,
        acceptance=None if message.acceptance == COUPLED else encode_acceptance(message.acceptance),
        logprobs=message.logprobs,
        privacy=_level(message.privacy),
    )


# The two messages of which there are thousands a second are filled in place: a nested message that is built
# first is copied into its envelope, and keywords cost protobuf twice what attributes do.


def _fill_propose(out: pb.Propose, message: Propose) -> None:
    out.tokens.extend(message.tokens)
    out.logprobs = message.logprobs  # also without nodes: an assignment is what makes an empty Propose one
    if message.parent_deltas:
        out.parent_deltas.extend(message.parent_deltas)
    if message.anchor is not None:
        out.anchor = message.anchor
    if message.seen_advance:
        out.seen_advance = message.seen_advance
    if message.drafts:
        out.draft_sizes.extend(0 if draft is None else len(draft.tokens) for draft in message.drafts)
        out.draft_tokens.extend(draft_tokens(message.drafts))
        out.draft_counts = bytes(count - 1 for draft in message.drafts if draft for count in draft.counts)


def draft_tokens(drafts: Sequence[Draft | None]) -> list[int]:
    """All drafts' tokens as they travel: the first of each, then differences."""
    return [
        token - before
        for draft in drafts
        if draft is not None
        for before, token in zip((0, *draft.tokens), draft.tokens, strict=False)
    ]


def _opened(message: Opened) -> pb.Opened:
    return pb.Opened(
        position=message.position,
        credit=message.credit,
        hold_us=_us(message.hold_us),
        privacy=_level(message.privacy),
        interval_us=_us(message.interval_us),
    )


def _fill_commit(out: pb.Commit, message: Commit) -> None:
    out.start = message.start
    out.tokens.extend(message.tokens)
    if message.server_made:
        out.server_made = _bits(message.server_made)
    if message.echo:
        out.echo = message.echo
    if message.hold_us:
        out.hold_us = min(message.hold_us, MAX_US)
    out.queue_us = min(message.queue_us, MAX_US)
    out.compute_us = min(message.compute_us, MAX_US)
    if message.credit is not None:
        out.credit = message.credit
    if message.evaluated:
        out.evaluated = message.evaluated
    if message.steps > 1:
        out.steps = message.steps
    if message.logprobs:
        out.logprobs.extend(each.logprob for each in message.logprobs)
        tops = [pair for each in message.logprobs for pair in each.top]
        out.top_tokens.extend(token for token, _ in tops)
        out.top_logprobs.extend(logprob for _, logprob in tops)


def _finish(message: Finish) -> pb.Finish:
    reason = pb.FinishReason.Name(message.reason.value)
    return pb.Finish(reason=reason, position=message.position)


def _level(privacy: Privacy | None) -> str | None:
    return None if privacy is None else pb.Privacy.Name(privacy.value)


def _unless(value: float, default: float) -> float | None:
    return None if value == default else value


def _us(duration: int) -> int:
    return min(duration, MAX_US)


def _bits(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")
