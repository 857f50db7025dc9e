"""Encode and decode `Describe`: a verifier's model, its limits and, on request, its token table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from common.acceptance import AcceptanceRule
from common.errors import PeerError, UserError
from common.pb import verifier_pb2 as pb
from common.sampling import NO_ADVICE, SamplingDefaults
from common.wire import bounds
from common.wire.codec import MAX_US, decode_rule, encode_rule

PROTOCOL_VERSION = 1
"""Version of docs/protocol.md. It rises with changes that an old client must not ignore."""

TokenTable = tuple[bytes | None, ...]
"""Each token's bytes by id; None for an id without a token (padding)."""


@dataclass(frozen=True, slots=True)
class VerifierLoad:
    """The load says how busy a verifier is."""

    num_sessions: int
    max_sessions: int  # 0: not told
    draining: bool = False  # no new session is admitted
    turn_us: int = 0  # one session more would wait so long for its next tokens, queue and step; 0: not told


@dataclass(frozen=True, slots=True)
class Description:
    """The description is one verifier's answer to `Describe`."""

    model: str
    vocab_size: int  # token ids run from 0 to this, exclusive, padding included
    max_positions: int  # longest prompt + text
    fingerprint: bytes  # of the token table, `common.vocabulary`
    eos_token_ids: tuple[int, ...] = ()
    vocabulary: TokenTable | None = None  # vocab_size entries; None if it was not asked for
    acceptance_rules: tuple[AcceptanceRule, ...] = (AcceptanceRule.COUPLED,)  # that a session may ask for
    version: str = ""  # of the program, for people
    load: VerifierLoad | None = None  # None if it was not told
    protocol_version: int = PROTOCOL_VERSION
    chat_template: str = ""  # of Jinja; empty if it was not asked for or the target has none
    bos_token: str = ""  # its text, for the template; empty without one
    eos_token: str = ""
    grammars: bool = False  # whether a session may have one: a verifier that does not know them ignores it
    max_session_positions: int | None = None  # longest prompt + text that is admitted; None: not told
    max_text_tokens: int | None = None  # longest text that the caller's quota allows; None: no limit
    sampling_defaults: SamplingDefaults = NO_ADVICE  # advised for requests that name no value
    repeats: bool | None = None  # whether equal requests get equal texts, bit for bit; None: not told
    step_times: tuple[tuple[int, int], ...] = ()  # rows, rising, and us of such a step; empty: not measured


def encode_description(description: Description) -> pb.DescribeResponse:
    """Encode the verifier's answer."""
    table, longest_text = description.vocabulary, description.max_text_tokens
    return pb.DescribeResponse(
        protocol_version=description.protocol_version,
        model=description.model,
        vocab_size=description.vocab_size,
        max_positions=description.max_positions,
        eos_token_ids=description.eos_token_ids,
        fingerprint=description.fingerprint,
        vocabulary=None if table is None else _encode_table(table),
        acceptance_rules=[encode_rule(rule) for rule in description.acceptance_rules],
        version=description.version,
        load=None if description.load is None else _encode_load(description.load),
        chat_template=description.chat_template,
        bos_token=description.bos_token,
        eos_token=description.eos_token,
        grammars=description.grammars,
        max_session_positions=description.max_session_positions,
        max_text_tokens=longest_text if longest_text is None else min(longest_text, bounds.MAX_POSITION),
        sampling_defaults=pb.SamplingDefaults(**description.sampling_defaults.advised),
        repeats=description.repeats,
        step_times=[
            pb.StepTime(rows=rows, time_us=min(time, MAX_US)) for rows, time in description.step_times
        ],
    )


def table_bytes(table: TokenTable) -> bytes:
    """Serialise a token table as the rest of an answer without one; protobuf reads both as one message."""
    return pb.DescribeResponse(vocabulary=_encode_table(table)).SerializeToString()


def decode_description(response: pb.DescribeResponse) -> Description:
    """Decode the answer. Raises `PeerError` when a field is out of bounds or the version is not ours."""
    version = response.protocol_version
    if version != PROTOCOL_VERSION:
        raise PeerError(f"describe.protocol_version is {version}; this edge speaks {PROTOCOL_VERSION} only")
    size = bounds.in_range("describe.vocab_size", response.vocab_size, 1, bounds.MAX_VOCAB_SIZE)
    limit, load = bounds.MAX_POSITION, response.load
    eos = bounds.tokens("describe.eos_token_ids", response.eos_token_ids, 0, bounds.MAX_EOS_TOKENS)
    return Description(
        model=bounds.text("describe.model", response.model, bounds.MAX_MODEL_CHARS),
        vocab_size=size,
        max_positions=bounds.in_range("describe.max_positions", response.max_positions, 1, limit),
        fingerprint=bounds.blob("describe.fingerprint", response.fingerprint, bounds.MAX_FINGERPRINT_BYTES),
        eos_token_ids=eos,
        vocabulary=_decode_table(response.vocabulary, size) if response.HasField("vocabulary") else None,
        acceptance_rules=_decode_rules(response.acceptance_rules),
        version=bounds.text("describe.version", response.version, bounds.MAX_VERSION_CHARS),
        load=VerifierLoad(load.sessions, load.max_sessions, load.draining, load.turn_us)
        if response.HasField("load")
        else None,
        chat_template=bounds.page(
            "describe.chat_template", response.chat_template, bounds.MAX_TEMPLATE_BYTES
        ),
        bos_token=bounds.page("describe.bos_token", response.bos_token, bounds.MAX_PIECE_BYTES),
        eos_token=bounds.page("describe.eos_token", response.eos_token, bounds.MAX_PIECE_BYTES),
        grammars=response.grammars,
        max_session_positions=_optional_count(response, "max_session_positions"),
        max_text_tokens=_optional_count(response, "max_text_tokens"),
        sampling_defaults=_decode_defaults(response.sampling_defaults),
        repeats=response.repeats if response.HasField("repeats") else None,
        step_times=_decode_step_times(response.step_times),
    )


def _decode_step_times(messages: Sequence[pb.StepTime]) -> tuple[tuple[int, int], ...]:
    bounds.in_range("describe.step_times", len(messages), 0, bounds.MAX_STEP_TIMES)
    step_times = tuple((each.rows, each.time_us) for each in messages)
    if any(before[0] >= after[0] for before, after in pairwise(((0, 0), *step_times))):
        raise PeerError("describe.step_times do not rise by rows, from 1 on")
    if not all(time for _, time in step_times):
        raise PeerError("describe.step_times has a step that took no time")
    return step_times


def _optional_count(response: pb.DescribeResponse, name: str) -> int | None:
    if not response.HasField(name):
        return None
    return bounds.in_range(f"describe.{name}", getattr(response, name), 1, bounds.MAX_POSITION)


def _decode_defaults(message: pb.SamplingDefaults) -> SamplingDefaults:
    given = {field.name: value for field, value in message.ListFields()}
    try:
        return SamplingDefaults(**given)
    except UserError as error:
        raise PeerError(f"describe.sampling_defaults: {error}") from error


def _decode_rules(numbers: Sequence[int]) -> tuple[AcceptanceRule, ...]:
    """Return the rules that are known here; a verifier that names none has the coupled rule."""
    bounds.count("describe.acceptance_rules", len(numbers), 0, bounds.MAX_ACCEPTANCE_RULES)
    rules = (decode_rule(number) for number in numbers)
    return tuple(rule for rule in rules if rule is not None) or (AcceptanceRule.COUPLED,)


def _encode_load(load: VerifierLoad) -> pb.Load:
    return pb.Load(
        sessions=load.num_sessions,
        max_sessions=load.max_sessions,
        draining=load.draining,
        turn_us=min(load.turn_us, MAX_US),
    )


def _encode_table(table: TokenTable) -> pb.Vocabulary:
    return pb.Vocabulary(
        pieces=[piece or b"" for piece in table],
        absent=[token for token, piece in enumerate(table) if piece is None],
    )


def _decode_table(message: pb.Vocabulary, vocab_size: int) -> TokenTable:
    bounds.count("describe.vocabulary.pieces", len(message.pieces), vocab_size, vocab_size)
    bounds.count("describe.vocabulary.absent", len(message.absent), 0, vocab_size)
    table: list[bytes | None] = list(message.pieces)
    longest = max(len(piece) for piece in message.pieces)
    bounds.count("describe.vocabulary.pieces' longest", longest, 0, bounds.MAX_PIECE_BYTES, "bytes")
    for token in message.absent:
        bounds.in_range("describe.vocabulary.absent", token, 0, vocab_size - 1)
        if table[token]:
            raise PeerError(f"describe.vocabulary.absent names token {token}, which has a piece")
        table[token] = None
    return tuple(table)
