"""Messages that are protobuf, and sense only by chance: every field legal, at an edge, or anything at all."""

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from common.acceptance import AcceptanceRule
from common.pb import verifier_pb2 as pb
from tests.fuzz.cases import DEADLINES, ENDS, HURRY, Case, Event, Listen, Send
from tests.support.tiny import VOCABULARY
from tests.worlds.models import VOCAB

EDGES_32 = (0, 1, 2, VOCAB - 1, VOCAB, 31, 64, 65, 127, 128, 255, 256, 257, 511, 512, 513, 4095, 65535, 65536)
HUGE_32 = (10**6, 2**31 - 1, 2**31, 2**32 - 1)
EDGES_64 = (0, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
EDGES_REAL = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 0.7, 100.0, 100.00000000000001, -100.0, 1000.0, 1001.0, -1000.0),
    *(5e-324, 2.3e-308, 1e-30, 1e30, 1.7e308, -1.7e308, 2.0**63, float("inf"), float("-inf"), float("nan")),
)
WIDE = st.one_of(st.sampled_from(EDGES_32 + HUGE_32), st.integers(0, 2**32 - 1))
REAL = st.one_of(st.sampled_from(EDGES_REAL), st.floats())
LEGAL_TOKEN = st.integers(0, VOCAB - 1)
TOKEN = st.one_of(LEGAL_TOKEN, LEGAL_TOKEN, LEGAL_TOKEN, WIDE)
WORDS = st.one_of(
    st.sampled_from(
        ["", "tiny", "other", "\0", "a\nb", "x" * 128, "x" * 129, "x" * 256, "x" * 257, "🙂" * 256]
    ),
    st.text(max_size=20),
)
TOKENS = st.one_of(
    st.lists(LEGAL_TOKEN, min_size=1, max_size=12),
    st.lists(TOKEN, max_size=6),
    st.builds(lambda token, count: [token] * count, TOKEN, st.sampled_from([64, 129, 511, 512, 513, 3000])),
)
RULE = st.one_of(
    st.sampled_from([rule.value for rule in AcceptanceRule]), st.integers(-3, 99), st.just(2**31 - 1)
)
BIAS = st.builds(pb.LogitBias, token=TOKEN, bias=REAL)

GRAMMAR = st.one_of(
    st.sampled_from(
        ["{}", "start: /a*/", '%llguidance {}\nstart: "1" "2"', "start: start", "(" * 3000, "x" * 65537]
    ),
    st.text(max_size=30),
)

SAMPLING_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": REAL,
    "top_k": WIDE,
    "top_p": REAL,
    "min_p": REAL,
    "repetition_penalty": REAL,
    "presence_penalty": REAL,
    "frequency_penalty": REAL,
    "logit_bias": st.one_of(
        st.lists(BIAS, max_size=4), st.builds(lambda b, n: [b] * n, BIAS, st.sampled_from([1024, 1025]))
    ),
    "stop_token_ids": st.one_of(
        st.lists(TOKEN, max_size=4), st.builds(lambda t, n: [t] * n, TOKEN, st.sampled_from([128, 129]))
    ),
    "ignore_eos": st.booleans(),
    "max_tokens": WIDE,
    "seed": st.one_of(st.sampled_from(EDGES_64), st.integers(0, 2**64 - 1)),
    "grammar": GRAMMAR,
}
"""Each alone legal at times; which of them a message carries is drawn."""

LEGAL_SAMPLING = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 40)},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 1.0, 1.5]),
        "top_k": st.integers(0, 8),
        "top_p": st.sampled_from([0.3, 0.9, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "ignore_eos": st.booleans(),
        "seed": st.integers(0, 9),
    },
)
ACCEPTANCE_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "rule": RULE,
    "lenience": REAL,
    "epsilon": REAL,
    "delta": REAL,
    "top": WIDE,
    "gap": REAL,
    "rollback": REAL,
    "alpha": REAL,
    "beta": REAL,
}
LOSSLESS_RULE = st.builds(pb.Acceptance, rule=st.sampled_from([1, 2, 3, 4, 9, 10]))
OPEN_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "prompt": TOKENS,
    "committed": TOKENS,
    "fingerprint": st.one_of(st.binary(max_size=70), st.just(b"x" * 64), st.just(b"x" * 65)),
    "model": WORDS,
    "session_id": WORDS,
    "fill": st.booleans(),
    "acceptance": st.builds(
        lambda fields: pb.Acceptance(**fields), st.fixed_dictionaries({}, optional=ACCEPTANCE_FIELDS)
    ),
    "logprobs": st.one_of(st.integers(0, 21), WIDE),
    "privacy": st.one_of(st.sampled_from([0, 1, *[2] * 6, 3, 4]), st.just(2**31 - 1)),
}


@st.composite
def openings(draw: st.DrawFn) -> bytes:
    """An `Open` that is legal but for none to two of its fields."""
    sampling: dict[str, Any] = dict(draw(LEGAL_SAMPLING))
    fields: dict[str, Any] = {"prompt": draw(st.lists(LEGAL_TOKEN, min_size=1, max_size=12))}
    fields["fingerprint"] = VOCABULARY.fingerprint
    if draw(st.booleans()):
        fields["acceptance"] = draw(LOSSLESS_RULE)
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        name = draw(st.sampled_from([*SAMPLING_FIELDS, *OPEN_FIELDS]))
        if name in SAMPLING_FIELDS:
            sampling[name] = draw(SAMPLING_FIELDS[name])
        else:
            fields[name] = draw(OPEN_FIELDS[name])
    return pb.SessionRequest(open=pb.Open(sampling=pb.Sampling(**sampling), **fields)).SerializeToString()


@st.composite
def proposals(draw: st.DrawFn) -> bytes:
    """A `Propose` whose parts fit each other most of the time; where they lead nobody looks."""
    odd = draw(st.integers(0, 5)) == 0
    size = draw(st.sampled_from([0, 1, 2, 3, 4, 8, 16, 200, *([256, 257] if odd else [])]))
    tokens = draw(st.lists(TOKEN if odd else LEGAL_TOKEN, min_size=min(size, 12), max_size=min(size, 12)))
    message = pb.Propose(tokens=(tokens * size)[:size])  # beyond a dozen they repeat: more shows nothing new
    message.logprobs = draw(st.binary(max_size=12)) if odd else draw(st.binary(min_size=1, max_size=1)) * size
    if draw(st.booleans()):
        message.anchor = draw(st.one_of(st.integers(0, 14), WIDE) if odd else st.integers(0, 14))
    if draw(st.booleans()):
        delta = st.one_of(st.integers(0, 4), WIDE) if odd else st.integers(0, 4)
        deltas = draw(st.lists(delta, min_size=1, max_size=12))
        message.parent_deltas.extend((deltas * size)[:size] if not odd else deltas)
    message.seen_advance = draw(
        st.one_of(st.just(0), st.integers(0, 3), WIDE) if odd else st.sampled_from([0, 1])
    )
    if draw(st.integers(0, 2)) == 0:
        _distributions(draw, message, odd)
    return pb.SessionRequest(propose=message).SerializeToString()


def _distributions(draw: st.DrawFn, message: pb.Propose, odd: bool) -> None:
    """What nodes were drawn from: whole, or with tokens and counts that do not hang together."""
    if odd:
        message.draft_sizes.extend(draw(st.lists(st.one_of(st.integers(0, 4), WIDE), max_size=6)))
        message.draft_tokens.extend(draw(st.lists(TOKEN, max_size=8)))
        message.draft_counts = draw(st.binary(max_size=8))
        return
    for token in message.tokens[:8]:
        others = draw(st.integers(0, VOCAB - 1))
        pair = sorted({token, others if draw(st.booleans()) else token})
        first = draw(st.integers(1, 255)) if len(pair) == 2 else 256
        message.draft_sizes.append(len(pair))
        message.draft_tokens.extend([pair[0], *(b - a for a, b in pairwise(pair))])
        message.draft_counts += bytes(
            count - 1 for count in ((first, 256 - first) if first < 256 else (256,))
        )
    message.draft_sizes.extend([0] * (len(message.tokens) - len(message.draft_sizes)))


PADDINGS = st.sampled_from([(0,), (3, 0), (100,), (127, 0), (128,), (4000,), (100_000,), (0,) * 300])
"""Entries of padding, by their bytes (rule 21)."""


@st.composite
def padded(draw: st.DrawFn, frames: st.SearchStrategy[bytes]) -> bytes:
    """A frame with entries of padding, in front or behind."""
    frame = draw(frames)
    more = pb.SessionRequest(padding=[bytes(size) for size in draw(PADDINGS)]).SerializeToString()
    return more + frame if draw(st.booleans()) else frame + more


CLOSE = pb.SessionRequest(close=pb.Close()).SerializeToString()
NOTHING = pb.SessionRequest().SerializeToString()
UNKNOWN = st.builds(
    lambda data, field: data + bytes([field << 3 | 2, 3]) + b"new", proposals(), st.integers(4, 15)
)
"""A message of a later version: with a member beside its own that is not known here."""

FORMER = st.sampled_from([b"\x2a\x00", b"\x22\x00", b"\x22\x02\x05\x12"])
"""A filler of earlier versions, and pieces of a message."""

MESSAGES: st.SearchStrategy[Event] = st.one_of(
    openings(),
    *(proposals() for _ in range(3)),
    padded(proposals()),
    st.just(CLOSE),
    padded(st.just(NOTHING)),
    UNKNOWN,
    FORMER,
).map(Send)
LISTEN: st.SearchStrategy[Event] = st.just(Listen())


@st.composite
def streams(draw: st.DrawFn) -> tuple[Event, ...]:
    """Most begin with an `Open`; then anything, in any order."""
    opening = st.one_of(openings(), padded(openings()))
    first: list[Event] = [Send(draw(opening))] if draw(st.integers(0, 7)) else []
    rest: list[Event] = draw(st.lists(st.one_of(MESSAGES, MESSAGES, LISTEN), max_size=10))
    return (*first, *rest, *draw(ENDS))


METADATA = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["traceparent", "x-session-id", "x-a"]), st.text("abc,;= 0", max_size=40)),
        st.tuples(st.sampled_from(["x-tenant-bin", "forerun-error-bin", "x-b-bin"]), st.binary(max_size=40)),
        st.tuples(st.just("x-long"), st.builds(lambda n: "y" * n, st.sampled_from([500, 5000, 20000]))),
    ),
    max_size=3,
).map(tuple)  # fmt: skip
TENANTS = st.sampled_from(["hostile", "hostile", "another", "", "t" * 500])

CASES = st.builds(
    Case,
    st.lists(streams(), min_size=1, max_size=2).map(tuple),
    tenant=TENANTS,
    metadata=METADATA,
    time_left=DEADLINES,
    hurried=HURRY,
    squeezed=st.booleans(),
)
