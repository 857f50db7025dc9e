"""Convert the messages of `common.messages` to protobuf and back.

    driver ── encode_request ──▶ SessionRequest ──▶ decode_request ── verifier
    driver ◀─ decode_response ── SessionResponse ◀── encode_response ─ verifier

Encoding trusts our own side: a number outside its field is a defect of ours and shows as protobuf's
`ValueError`. Fields at their default are left out. Decoding trusts nothing (`common.wire.bounds`, rule 15 of
docs/protocol.md): it raises `PeerError` with field, value and range, or `UserError` for parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any, assert_never

from common.acceptance import COUPLED, PARAMETERS, Acceptance, AcceptanceRule, Draft
from common.errors import PeerError, UserError
from common.messages import (
    MAX_HINTED,
    MAX_TOP_LOGPROBS,
    ClientMessage,
    Close,
    Commit,
    Drain,
    Finish,
    FinishReason,
    Hint,
    Open,
    Opened,
    Propose,
    ServerMessage,
    TokenLogprobs,
    Wait,
)
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.sampling import MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKENS, SamplingParams
from common.wire import bounds

_DEFAULTS = SamplingParams()

MAX_US = 2**32 - 1
"""Limit at which times saturate: 71 minutes, beyond any round trip."""


def encode_request(message: ClientMessage) -> pb.SessionRequest:
    """Encode what the edge sends."""
    match message:
        case Propose():
            request = pb.SessionRequest()
            _fill_propose(request.propose, message)
            return request
        case Open():
            return pb.SessionRequest(open=_encode_open(message))
        case Close():
            return pb.SessionRequest(close=pb.Close())
        case _:
            assert_never(message)


def encode_response(message: ServerMessage) -> pb.SessionResponse:
    """Encode what the verifier sends."""
    match message:
        case Commit():
            response = pb.SessionResponse()
            _fill_commit(response.commit, message)
            return response
        case Opened():
            opened = pb.Opened(
                position=message.position,
                credit=message.credit,
                hold_us=min(message.hold_us, MAX_US),
                privacy=_encode_level(message.privacy),
                cached=message.cached,
            )
            return pb.SessionResponse(opened=opened)
        case Hint():
            hint = pb.Hint(node=message.node, anchor=message.anchor, path=message.path, tokens=message.tokens)
            return pb.SessionResponse(hint=hint)
        case Drain():
            return pb.SessionResponse(drain=pb.Drain(grace_us=min(message.grace_us, MAX_US)))
        case Finish():
            reason = pb.FinishReason.Name(message.reason.value)
            return pb.SessionResponse(finish=pb.Finish(reason=reason, position=message.position))
        case _:
            assert_never(message)


def encode_sampling(sampling: SamplingParams) -> pb.Sampling:
    """Encode sampling parameters; those at their default are absent."""
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    changed = {name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)}
    changed["logit_bias"] = [pb.LogitBias(token=token, bias=bias) for token, bias in sampling.logit_bias]
    return pb.Sampling(**changed)


def encode_rule(rule: AcceptanceRule) -> str:
    """Return a rule's name on the wire."""
    return pb.AcceptanceRule.Name(rule.value)


def encode_acceptance(acceptance: Acceptance) -> pb.Acceptance:
    """Encode a rule with its settings."""
    names = PARAMETERS.get(acceptance.rule, ())
    settings = {name: getattr(acceptance, name) for name in names}
    return pb.Acceptance(rule=encode_rule(acceptance.rule), **settings)


def _encode_open(message: Open) -> pb.Open:
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
        privacy=_encode_level(message.privacy),
        hints=message.hints,
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
    if message.wait is not None:
        out.wait_due_us, out.wait_most_us = message.wait


def draft_tokens(drafts: Sequence[Draft | None]) -> list[int]:
    """Return all drafts' tokens as they travel: the first of each, then differences."""
    return [
        token - before
        for draft in drafts
        if draft is not None
        for before, token in zip((0, *draft.tokens), draft.tokens, strict=False)
    ]


def _fill_commit(out: pb.Commit, message: Commit) -> None:
    out.start = message.start
    out.tokens.extend(message.tokens)
    if message.server_made:
        out.server_made = _packed_mask(message.server_made)
    if message.guessed:
        out.guessed = _packed_mask(message.guessed)
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


def _encode_level(privacy: Privacy | None) -> str | None:
    return None if privacy is None else pb.Privacy.Name(privacy.value)


# Decoding ---------------------------------------------------------------------------------------------------


def decode_request(request: pb.SessionRequest) -> ClientMessage:
    """Decode what the edge sent. Raises `PeerError`, `UserError`."""
    if len(request.padding) > bounds.MAX_PADDING:
        raise PeerError(bounds.TOO_MUCH_PADDING)
    kind = request.WhichOneof("message")
    if kind == "propose":
        return _propose(request.propose)
    if kind == "open":
        return _open(request.open)
    if kind == "close":
        return Close()
    raise PeerError("the request is empty or unknown; it must hold one of open, propose, close")


def decode_response(response: pb.SessionResponse) -> ServerMessage:
    """Decode what the verifier sent. Raises `PeerError`."""
    kind = response.WhichOneof("message")
    if kind == "commit":
        return _commit(response.commit)
    if kind == "opened":
        return _opened(response.opened)
    if kind == "hint":
        return _hint(response.hint)
    if kind == "drain":
        return Drain(response.drain.grace_us)
    if kind == "finish":
        return _finish(response.finish)
    known = "opened, commit, hint, drain, finish"
    raise PeerError(f"the response is empty or unknown; it must hold one of {known}")


def is_idle(response: pb.SessionResponse) -> bool:
    """Tell whether the verifier sent only a sign of life."""
    return bool(response.WhichOneof("message") == "idle")


def decode_sampling(message: pb.Sampling) -> SamplingParams:
    """Decode sampling parameters, absent ones at their default. Raises `UserError`."""
    _few("logit_bias", len(message.logit_bias), MAX_LOGIT_BIAS_ENTRIES)
    _few("stop_token_ids", len(message.stop_token_ids), MAX_STOP_TOKENS)
    given: dict[str, Any] = {field.name: value for field, value in message.ListFields()}
    given["logit_bias"] = tuple((entry.token, entry.bias) for entry in message.logit_bias)
    given["stop_token_ids"] = tuple(message.stop_token_ids)
    return SamplingParams(**given)


def decode_rule(number: int) -> AcceptanceRule | None:
    """Return the rule of a number on the wire, or None for an unknown one."""
    return next((rule for rule in AcceptanceRule if rule.value == number), None)


def decode_acceptance(message: pb.Acceptance) -> Acceptance:
    """Decode a rule with its settings, absent ones at their default. Raises `UserError`."""
    rule = decode_rule(message.rule)
    if rule is None:
        known = ", ".join(f"{each.value} ({each.title})" for each in AcceptanceRule)
        raise UserError(f"acceptance.rule is {message.rule}; this verifier knows {known}")
    names = PARAMETERS.get(rule, ())
    return Acceptance(rule, **{name: getattr(message, name) for name in names if message.HasField(name)})


def _open(message: pb.Open) -> Open:
    return Open(
        prompt=bounds.tokens("open.prompt", message.prompt, 1, bounds.MAX_PROMPT_TOKENS),
        sampling=decode_sampling(message.sampling),
        fingerprint=bounds.blob("open.fingerprint", message.fingerprint, bounds.MAX_FINGERPRINT_BYTES),
        model=bounds.text("open.model", message.model, bounds.MAX_MODEL_CHARS),
        committed=bounds.tokens("open.committed", message.committed, 0, bounds.MAX_COMMITTED_TOKENS),
        fill=message.fill if message.HasField("fill") else True,
        session_id=bounds.text("open.session_id", message.session_id, bounds.MAX_SESSION_ID_CHARS),
        acceptance=decode_acceptance(message.acceptance) if message.HasField("acceptance") else COUPLED,
        logprobs=_asked_logprobs(message.logprobs) if message.HasField("logprobs") else None,
        privacy=_level("open.privacy", message.privacy),
        hints=message.hints,
    )


def _propose(message: pb.Propose) -> Propose:
    tokens = bounds.tokens("propose.tokens", message.tokens, 0, bounds.MAX_NODES)
    logprobs = message.logprobs
    if len(logprobs) != len(tokens):
        raise PeerError(f"propose.logprobs has {len(logprobs)} bytes; one for each of {len(tokens)} tokens")
    anchor = message.anchor if message.HasField("anchor") else None
    if anchor is not None:
        bounds.in_range("propose.anchor", anchor, 0, bounds.MAX_POSITION)
    deltas = _deltas(message, len(tokens), anchor) if message.parent_deltas else ()
    seen = bounds.in_range("propose.seen_advance", message.seen_advance, 0, bounds.MAX_POSITION)
    told = message.draft_sizes or message.draft_tokens or message.draft_counts
    drafts = _drafts(message, len(tokens)) if told else ()
    return Propose(tokens, logprobs, deltas, anchor, seen, drafts, _wait(message))


def _wait(message: pb.Propose) -> Wait | None:
    has_due, has_most = message.HasField("wait_due_us"), message.HasField("wait_most_us")
    if has_due != has_most:
        raise PeerError("propose has one of wait_due_us and wait_most_us; it must have both or neither")
    if not has_due:
        return None
    for name, value in (("wait_due_us", message.wait_due_us), ("wait_most_us", message.wait_most_us)):
        bounds.in_range(f"propose.{name}", value, 0, bounds.MAX_WAIT_US)
    return Wait(message.wait_due_us, message.wait_most_us)


def _drafts(message: pb.Propose, num_nodes: int) -> tuple[Draft | None, ...]:
    """Return one entry a node. All sizes are checked before anything is copied."""
    sizes, differences, counts = message.draft_sizes, message.draft_tokens, message.draft_counts
    if len(sizes) != num_nodes:
        raise PeerError(
            f"propose.draft_sizes has {len(sizes)} entries; "
            f"there must be none or one for each of {num_nodes} tokens"
        )
    bounds.in_range("propose.draft_sizes", max(sizes, default=0), 0, bounds.MAX_DRAFT_TOKENS)
    for name, length in (("draft_tokens", len(differences)), ("draft_counts", len(counts))):
        if length != sum(sizes):
            raise PeerError(f"propose.{name} has {length} entries; propose.draft_sizes sum to {sum(sizes)}")
    drafts, end = list[Draft | None](), 0
    for size in sizes:
        start, end = end, end + size
        drafts.append(_draft(differences[start:end], counts[start:end]) if size else None)
    return tuple(drafts)


def _draft(differences: Sequence[int], counts: bytes) -> Draft:
    tokens = tuple(accumulate(differences))
    bounds.in_range("propose.draft_tokens token id", tokens[-1], 0, bounds.MAX_TOKEN_ID)
    draft = Draft(tokens, tuple(count + 1 for count in counts))
    problem = draft.problem()
    if problem is not None:
        raise PeerError(f"a distribution in propose.draft_tokens {problem}")
    return draft


def _deltas(message: pb.Propose, num_nodes: int, anchor: int | None) -> tuple[int, ...]:
    number = len(message.parent_deltas)
    if number != num_nodes:
        raise PeerError(
            f"propose.parent_deltas has {number} entries; "
            f"there must be none (a chain) or one for each of {num_nodes} tokens"
        )
    deltas = tuple(message.parent_deltas)
    bounds.in_range("propose.parent_deltas", max(deltas), 0, bounds.MAX_PARENT_DELTA)
    if anchor is None and 0 in deltas:
        raise PeerError("propose.parent_deltas has a 0, which names the anchor; propose.anchor must be set")
    return deltas


def _opened(message: pb.Opened) -> Opened:
    return Opened(
        position=bounds.in_range("opened.position", message.position, 0, bounds.MAX_POSITION),
        credit=bounds.in_range("opened.credit", message.credit, 0, bounds.MAX_CREDIT),
        hold_us=message.hold_us,
        privacy=_level("opened.privacy", message.privacy),
        cached=bounds.in_range("opened.cached", message.cached, 0, bounds.MAX_POSITION),
    )


def _level(field: str, number: int) -> Privacy | None:
    if not number:
        return None
    try:
        return Privacy(number)
    except ValueError:
        known = ", ".join(f"{level.value} ({level.name})" for level in Privacy)
        raise PeerError(f"{field} is {number}; it must be one of {known}") from None


def _commit(message: pb.Commit) -> Commit:
    tokens = bounds.tokens("commit.tokens", message.tokens, 0, bounds.MAX_COMMIT_TOKENS)
    last_start = bounds.MAX_POSITION - len(tokens)
    credit = message.credit if message.HasField("credit") else None
    if credit is not None:
        bounds.in_range("commit.credit", credit, 0, bounds.MAX_CREDIT)
    return Commit(
        start=bounds.in_range("commit.start", message.start, 0, last_start),
        tokens=tokens,
        server_made=_mask("commit.server_made", message.server_made, len(tokens)),
        guessed=_mask("commit.guessed", message.guessed, len(tokens)),
        echo=message.echo,
        hold_us=message.hold_us,
        queue_us=message.queue_us,
        compute_us=message.compute_us,
        credit=credit,
        evaluated=bounds.in_range("commit.evaluated", message.evaluated, 0, bounds.MAX_CREDIT + 1),
        steps=bounds.in_range("commit.steps", message.steps or 1, 1, max(1, len(tokens))),
        logprobs=_logprobs(message, len(tokens)) if message.logprobs or message.top_tokens else (),
    )


def _hint(message: pb.Hint) -> Hint:
    return Hint(
        node=bounds.in_range("hint.node", message.node, 0, bounds.MAX_POSITION),
        anchor=bounds.in_range("hint.anchor", message.anchor, 0, bounds.MAX_POSITION),
        path=bounds.tokens("hint.path", message.path, 0, bounds.MAX_NODES),
        tokens=bounds.tokens("hint.tokens", message.tokens, 1, MAX_HINTED),
    )


def _asked_logprobs(number: int) -> int:
    if number > MAX_TOP_LOGPROBS:
        raise UserError(f"logprobs is {number}; it must lie in [0, {MAX_TOP_LOGPROBS}]")
    return number


def _logprobs(message: pb.Commit, num_tokens: int) -> tuple[TokenLogprobs, ...]:
    logprobs, tokens, values = message.logprobs, message.top_tokens, message.top_logprobs
    bounds.count("commit.logprobs", len(logprobs), num_tokens, num_tokens)
    bounds.count("commit.top_logprobs", len(values), len(tokens), len(tokens))
    each, rest = divmod(len(tokens), num_tokens) if num_tokens else (0, len(tokens))
    if not all(value <= 0.0 for value in (*logprobs, *values)):  # False also for what is no number
        raise PeerError("commit.logprobs or commit.top_logprobs has one that is not 0 or less")
    if rest or each > MAX_TOP_LOGPROBS:
        raise PeerError(
            f"commit.top_tokens has {len(tokens)} entries; there must be as many for each of {num_tokens} "
            f"tokens, {MAX_TOP_LOGPROBS} at most"
        )
    pairs = list(zip(bounds.tokens("commit.top_tokens", tokens, 0, len(tokens)), values, strict=True))
    tops = (tuple(pairs[at * each : (at + 1) * each]) for at in range(num_tokens))
    return tuple(map(TokenLogprobs, logprobs, tops))


def _packed_mask(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _mask(field: str, packed: bytes, num_tokens: int) -> int:
    if len(packed) > bounds.MAX_COMMIT_TOKENS // 8:  # before it becomes a large integer
        bounds.blob(field, packed, bounds.MAX_COMMIT_TOKENS // 8)
    mask = int.from_bytes(packed, "little")
    if mask >> num_tokens:
        raise PeerError(
            f"{field} sets bit {mask.bit_length() - 1}; with {num_tokens} tokens "
            f"bits 0 to {num_tokens}, exclusive, are allowed"
        )
    return mask


def _finish(message: pb.Finish) -> Finish:
    try:
        reason = FinishReason(message.reason)
    except ValueError:
        known = ", ".join(f"{reason.value} ({reason.name})" for reason in FinishReason)
        raise PeerError(f"finish.reason is {message.reason}; it must be one of {known}") from None
    return Finish(reason, bounds.in_range("finish.position", message.position, 0, bounds.MAX_POSITION))


def _few(field: str, number: int, limit: int) -> None:
    """Check a length as `SamplingParams` does, but before a million entries have become Python objects."""
    if number > limit:
        raise UserError(f"{field} has {number} entries; at most {limit} are allowed")
