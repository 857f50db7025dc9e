"""Conversations of real edges with some of their messages bent, lost, repeated or exchanged."""

from functools import cache

from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from cloud_verifier.core.engine_protocol import StepPlan
from cloud_verifier.core.limits import SchedulerConfig
from common.acceptance import make_acceptance
from common.messages import Close, Open, Propose
from common.pb import verifier_pb2 as pb
from common.sampling import SamplingParams
from common.wire.codec import encode_request
from edge_client.core.policies import SyncPolicy
from schemes.policies.tree import TreePolicy
from tests.fuzz.cases import DEADLINES, ENDS, HURRY, Case, Event, Leave, Listen, Send
from tests.fuzz.garbled import GARBLED
from tests.fuzz.meaningless import REAL, TENANTS, TOKEN, WIDE, openings, proposals
from tests.support.tiny import VOCABULARY
from tests.worlds.models import TinyDrafter
from tests.worlds.world import Edge, EdgeSpec, World, WorldSpec

PROMPT = (1, 2, 3, 1, 2)
SPECS = {
    "tree": EdgeSpec(
        PROMPT,
        SamplingParams(temperature=0.7, max_tokens=24, seed=5, ignore_eos=True),
        lambda: TreePolicy(width=3, max_children=3, cut=0.01),
        lambda: TinyDrafter(blend=0.3),
    ),
    "drawn": EdgeSpec(
        PROMPT,
        SamplingParams(temperature=1.0, max_tokens=24, seed=6, ignore_eos=True),
        lambda: TreePolicy(width=2, max_children=2, cut=0.01),
        lambda: TinyDrafter(blend=0.3),
        acceptance=make_acceptance("specinfer"),
        draft_top=4,
    ),
    "sync": EdgeSpec(PROMPT, SamplingParams(max_tokens=16, seed=7, ignore_eos=True), lambda: SyncPolicy(3)),
    "lost": EdgeSpec(
        PROMPT,
        SamplingParams(temperature=0.7, repetition_penalty=1.3, max_tokens=24, seed=8, ignore_eos=True),
        TreePolicy,
        lambda: TinyDrafter(blend=0.0),
    ),
}
"""Honest edges: a tree, a tree that is drawn, a classic one without fill, and one that loses its stream."""


class Recorder(World):
    """A world of one edge that notes what reaches the verifier, stream by stream, and when its steps end."""

    def __init__(self, spec: WorldSpec) -> None:
        super().__init__(spec)
        self.streams_heard: dict[int, list[Event]] = {}

    def note_received(self, stream: int, message: Open | Propose | Close) -> None:
        request = encode_request(message)
        if isinstance(message, Open):
            request.open.fingerprint = VOCABULARY.fingerprint
        self.streams_heard.setdefault(stream, []).append(Send(request.SerializeToString()))

    def note_step(self, plan: StepPlan) -> None:
        for heard in list(self.streams_heard.values())[-1:]:
            heard.append(Listen())


@cache
def recorded(name: str) -> tuple[tuple[Event, ...], ...]:
    """The streams of an honest edge, whole."""
    losses = 40 if name == "lost" else 0
    config = SchedulerConfig(prefill_chunk=5)
    spec = WorldSpec((SPECS[name],), seed=3, delay=(0.001, 0.03), losses=losses, config=config)
    world = Recorder(spec)
    world.run()
    edge: Edge = world.edges[0]
    assert edge.end is not None, "the recording ended"
    assert edge.end.error is None, edge.end.error
    return tuple(tuple(events) for events in world.streams_heard.values())


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> Event:
    """The same message with one of its fields made another; bytes that are none stay as they are."""
    try:
        request = pb.SessionRequest.FromString(data)
    except DecodeError:
        return Send(data)
    kind = request.WhichOneof("message")
    if kind == "propose":
        _change_propose(draw, request.propose)
    elif kind == "open":
        _change_open(draw, request.open)
    return Send(request.SerializeToString())


def _change_propose(draw: st.DrawFn, message: pb.Propose) -> None:
    near = st.one_of(st.integers(0, 40), WIDE)
    match draw(st.integers(0, 7)):
        case 0 if message.tokens:
            message.tokens[draw(st.integers(0, len(message.tokens) - 1))] = draw(TOKEN)
        case 1:
            message.anchor = draw(near)
        case 2:
            message.ClearField("anchor")
        case 3:
            message.seen_advance = draw(st.one_of(st.integers(0, 4), near))
        case 4 if message.parent_deltas:
            at = draw(st.integers(0, len(message.parent_deltas) - 1))
            message.parent_deltas[at] = draw(st.one_of(st.integers(0, 4), near))
        case 5:
            message.parent_deltas[:] = [draw(st.integers(0, 3))] * len(message.tokens)
        case 6 if message.draft_sizes:
            message.draft_tokens.append(draw(TOKEN))
            message.draft_counts += b"\x01"
            message.draft_sizes[draw(st.integers(0, len(message.draft_sizes) - 1))] += 1
        case _:
            message.logprobs = bytes([draw(st.integers(0, 255))]) * len(message.tokens)


def _change_open(draw: st.DrawFn, message: pb.Open) -> None:
    match draw(st.integers(0, 6)):
        case 0:
            message.prompt.append(draw(TOKEN))
        case 1:  # a resume with another prefix than it had
            message.committed[:] = draw(st.lists(TOKEN, max_size=30))
        case 2:
            message.sampling.max_tokens = draw(WIDE)
        case 3:
            message.sampling.temperature = draw(REAL)
        case 4:
            message.fingerprint = message.fingerprint[:-1] + b"!"
        case 5:
            message.fill = draw(st.booleans())
        case _:
            message.acceptance.rule = draw(st.integers(-1, 9))  # type: ignore[assignment]  # also unknown ones


@st.composite
def bent_streams(draw: st.DrawFn) -> tuple[Event, ...]:
    """One recorded stream with one to three things done to it."""
    events = list(draw(st.sampled_from(recorded(draw(st.sampled_from(sorted(SPECS)))))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(events) - 1)) if events else 0
        _bend(draw, events, at)
    return (*events, *draw(ENDS))


MISHAPS: st.SearchStrategy[Event] = st.sampled_from([Leave(), Leave(politely=True)])
STRANGERS: st.SearchStrategy[Event] = st.one_of(GARBLED, openings().map(Send), proposals().map(Send))
"""What another client would have sent."""


def _bend(draw: st.DrawFn, events: list[Event], at: int) -> None:
    other = draw(st.integers(0, max(0, len(events) - 1)))
    event = events[at] if events else Listen()
    match draw(st.integers(0, 8)):
        case 0 | 1 | 2 if isinstance(event, Send):
            events[at] = draw(changed(event.data))
        case 3:
            events.insert(at, event)  # twice
        case 4 if events:
            events[at], events[other] = events[other], events[at]
        case 5:
            events.insert(at, draw(STRANGERS))
        case 6:
            events.insert(at, draw(MISHAPS))
        case 7:
            del events[at:]
        case _:
            del events[at : at + 1]


CASES = st.builds(
    Case,
    st.lists(bent_streams(), min_size=1, max_size=2).map(tuple),
    tenant=TENANTS,
    time_left=DEADLINES,
    hurried=HURRY,
)
