"""Plays a case to the codec and the scheduler alone, in virtual time: fast, and the same every time.

An honest session with a right draft is there from the beginning. The reading of the stream is what
`VerifierService` and `Guard` do around the same calls.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, lru_cache
from itertools import zip_longest
from typing import assert_never

from google.protobuf.message import DecodeError

from cloud_verifier.core.admission import Caller
from cloud_verifier.core.effects import End
from cloud_verifier.core.engine_protocol import StepItem, StepPlan, TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.calls import Framing
from common.choice import choose
from common.errors import Code, ForerunError, PeerError, UnavailableError
from common.messages import Close, Commit, Finish, FinishReason, Open, Propose, ServerMessage
from common.pb import verifier_pb2 as pb
from common.privacy import Privacy
from common.sampling import SamplingParams
from common.wire.codec import decode_request, encode_response
from common.wire.grpc_options import MAX_MESSAGE_BYTES
from common.wire.status import to_status
from tests.fuzz.cases import Begin, Case, Event, Leave, Send, Step, Wait
from tests.fuzz.laws import NEIGHBOUR, Broken, Ear, check_all_returned, check_status, no_complaint
from tests.support.tiny import VOCABULARY
from tests.worlds.models import VOCAB, TinyTarget, target_alone, tiny_logits

HONEST = 1  # its key
PROMPT = (3, 1, 2)
SAMPLING = SamplingParams(temperature=0.7, max_tokens=14, seed=11, ignore_eos=True)
STEP_TIME = 0.01  # seconds
MOST_STEPS = 2000  # of a case; far above what all its texts can need


@cache
def honest_text() -> tuple[int, ...]:
    return target_alone(PROMPT, SAMPLING, ())


@lru_cache(maxsize=100_000)
def choice_after(sampling: SamplingParams, tail: tuple[int, ...], position: int) -> tuple[int, float]:
    """What the tiny target writes after these last tokens: asked for again and again, and slow to say."""
    choice = choose(tiny_logits(1, tail), sampling, position)
    return choice.token, choice.margin


class QuickTarget(TinyTarget):
    """The tiny target, which remembers what it said."""

    def _choose(self, item: StepItem, path: list[int]) -> tuple[int, float]:
        if item.sampling.reads_text:
            return super()._choose(item, path)
        return choice_after(item.sampling, tuple(path[-self.memory :]), len(path) - 1)


class Ledger:
    """What each tenant should have been charged, counted from the steps themselves."""

    def __init__(self, scheduler: VerifyScheduler) -> None:
        self._scheduler = scheduler
        self._tenants: dict[int, str] = {}  # by session key

    def enter(self, key: int, tenant: str) -> None:
        self._tenants[key] = tenant

    def settle(self, plan: StepPlan, done: StepDone) -> None:
        """Every row of the step, and every draft in vain, was charged to whom it belongs and to no other."""
        rows, wasted = Counter[str](), Counter[str]()
        before = self._standing()
        done()
        won = done.won
        for item in plan.items:
            tenant, drafts = self._tenants[item.session], max(0, len(item.outputs) - 1)
            rows[tenant] += len(item.tokens)
            wasted[tenant] += drafts - (won.get(item.session, 0) if drafts else 0)
        for tenant, (service, vain) in self._standing().items():
            was_service, was_vain = before[tenant]
            if service - was_service != rows[tenant]:
                raise Broken(f"{tenant!r} had {rows[tenant]} rows and was charged {service - was_service}")
            here = self._scheduler.tenants.get(tenant).num_sessions
            if here and vain - was_vain != wasted[tenant]:
                raise Broken(
                    f"{tenant!r} had {wasted[tenant]} drafts in vain, {vain - was_vain} were counted"
                )

    def _standing(self) -> dict[str, tuple[float, int]]:
        tenants = {name: self._scheduler.tenants.get(name) for name in self._tenants.values()}
        return {name: (tenant.service, tenant.num_wasted) for name, tenant in tenants.items()}


class StepDone:
    """Hands a step's result in, and keeps how many drafts of each session were right."""

    def __init__(self, desk: Desk, plan: StepPlan) -> None:
        self._desk, self._plan = desk, plan
        self.won: dict[int, int] = {}

    def __call__(self) -> None:
        desk = self._desk
        result = desk.engine.evaluate(self._plan)
        desk.now += STEP_TIME
        desk.scheduler.on_step_done(result, desk.now)
        for key, message in desk.take():
            if isinstance(message, Commit):
                self.won[key] = len(message.tokens) - 1


class Peer:
    """A client's stream as the service reads it: whether it was opened, and whether it is still read."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.framing = Framing(Privacy.PADDED)
        self.ear = Ear()
        self.opened = False
        self.read = True
        self.here = True

    def listen(self, sent: ServerMessage) -> None:
        """Read what leaves now: nothing else than was sent."""
        message = self.ear.hear(self.framing.frame(sent).SerializeToString())
        if _said(sent) != _said(message):
            raise Broken(f"a client was sent {sent} and read {message}")


def _said(message: ServerMessage) -> object:
    """Of a message, what the wire leaves as it is."""
    return message.tokens if isinstance(message, Commit) else type(message)


class Desk:
    """A verifier's mind at which the honest session and the case's streams sit."""

    def __init__(self, case: Case) -> None:
        limits = case.limits
        config = SchedulerConfig(
            prefill_chunk=5,
            recall=limits.recall,
            prefix_cache=limits.prefix_cache,
            max_rows=limits.max_rows,
            promised_text=limits.promised_text,
        )
        info = TargetInfo("tiny", VOCAB, 512, limits.num_slots, (0,), VOCABULARY.fingerprint)
        self.now = 0.0
        self.scheduler = VerifyScheduler(info, config)
        self.engine = QuickTarget(info)
        self.ledger = Ledger(self.scheduler)
        self.plan: StepPlan | None = None  # that runs
        self.written: list[int] = []  # for the honest session
        self._peers: dict[int, Peer] = {}
        self.ended: dict[int, ForerunError | None] = {}
        self.finished: dict[int, FinishReason] = {}
        self._deadline = case.time_left
        self._tenant = case.tenant
        self._honest()

    # Streams ----------------------------------------------------------------------------------------------

    def connect(self, key: int) -> Peer:
        self.ledger.enter(key, self._tenant)
        self.scheduler.on_connect(key, self.now)
        peer = self._peers[key] = Peer(key)
        return peer

    def receive(self, peer: Peer, data: bytes) -> None:
        """As the service does, from bytes on."""
        if not (peer.read and peer.here):
            return
        try:
            self._hear(peer, decode_request(_parsed(data)))
        except ForerunError as error:
            peer.read = False
            self.scheduler.on_violation(peer.key, error, self.now)
        self.take()

    def _hear(self, peer: Peer, message: Open | Propose | Close) -> None:
        if peer.opened == isinstance(message, Open):
            raise PeerError("this stream's Open came late or twice", Code.FAILED_PRECONDITION)
        peer.opened = True
        if isinstance(message, Open):
            peer.framing.asked(message)
            if message.sampling.grammar:
                self.engine.check_grammar(message)
        self._hand_in(peer.key, message)

    def leave(self, peer: Peer, politely: bool = False) -> None:
        """The service says so to a half-close; either way the stream is disconnected then."""
        if not peer.here:
            return
        if politely and peer.key not in self.ended:
            check_status(to_status(UnavailableError("the stream was half-closed without a Close")))
        peer.here = False
        self.scheduler.on_close(peer.key, None, self.now)
        self.take()

    # Steps and time ---------------------------------------------------------------------------------------

    def begin(self) -> bool:
        if self.plan is None:
            self.plan = self.scheduler.next_step(self.now)
        self.scheduler.check_integrity()
        return self.plan is not None

    def step(self) -> bool:
        """The rest of the running step, or a whole one. Whether there was one."""
        if not self.begin():
            return False
        plan, self.plan = self.plan, None
        assert plan is not None, "one has begun"
        self.ledger.settle(plan, StepDone(self, plan))
        self.scheduler.check_integrity()
        return True

    def wait(self, seconds: float) -> None:
        self.now += seconds
        while (at := self.scheduler.next_timer_at) is not None and at <= self.now:
            self.scheduler.on_timer(self.now)
            self.take()

    def take(self) -> list[tuple[int, object]]:
        """Send what is to be sent; every status is looked at."""
        sent = list[tuple[int, object]]()
        for effect in self.scheduler.effects():
            if isinstance(effect, End):
                self.ended.setdefault(effect.session, effect.error)
                if effect.error is not None:
                    check_status(to_status(effect.error))
                continue
            sent.append((effect.session, effect.message))
            self._send(effect.session, effect.message)
            if isinstance(effect.message, Finish):
                self.finished[effect.session] = effect.message.reason
            if effect.session == HONEST and isinstance(effect.message, Commit):
                self._heard(effect.message)
        return sent

    def _send(self, key: int, message: ServerMessage) -> None:
        if key == HONEST:
            encode_response(message).SerializeToString()
            return
        self._peers[key].listen(message)

    # The honest session -----------------------------------------------------------------------------------

    def _honest(self) -> None:
        self.ledger.enter(HONEST, NEIGHBOUR)
        request = Open(PROMPT, SAMPLING, VOCABULARY.fingerprint, session_id=NEIGHBOUR)
        self.scheduler.on_connect(HONEST, self.now)
        self.scheduler.on_open(HONEST, request, self.now, Caller(NEIGHBOUR))
        self._propose(0)
        self.take()

    def _heard(self, commit: Commit) -> None:
        self.written += commit.tokens
        if len(self.written) < SAMPLING.max_tokens:
            self._propose(len(commit.tokens))

    def _propose(self, seen: int) -> None:
        """Three tokens, of which every seventh is wrong."""
        at = len(self.written)
        draft = honest_text()[at : at + 3]
        tokens = tuple((token + 1) % VOCAB if (at + i) % 7 == 6 else token for i, token in enumerate(draft))
        anchor = len(PROMPT) - 1 + at
        self.scheduler.on_propose(HONEST, Propose(tokens, bytes(len(tokens)), (), anchor, seen), self.now)

    def outcome(self, key: int) -> str:
        """How a stream ended: by a status, by a reason, or not at all."""
        if key in self.finished:
            return self.finished[key].name
        error = self.ended.get(key)
        return error.code.value if error is not None else "(left)"

    def check_honest(self) -> None:
        if HONEST in self.ended and self.ended[HONEST] is not None:
            raise Broken(f"the honest session beside it was ended: {self.ended[HONEST]}")
        if tuple(self.written) != honest_text():
            raise Broken(f"the honest session beside it got {self.written} and not {list(honest_text())}")

    def _hand_in(self, key: int, message: Open | Propose | Close) -> None:
        match message:
            case Open():
                deadline = None if self._deadline is None else self.now + self._deadline
                self.scheduler.on_open(key, message, self.now, Caller(self._tenant, deadline))
            case Propose():
                self.scheduler.on_propose(key, message, self.now)
            case Close():
                self.scheduler.on_close(key, message, self.now)


def _parsed(data: bytes) -> pb.SessionRequest:
    if len(data) > MAX_MESSAGE_BYTES:
        raise PeerError("too large", Code.RESOURCE_EXHAUSTED)  # which gRPC says before us
    try:
        return pb.SessionRequest.FromString(data)
    except DecodeError:
        raise PeerError("not a message") from None


def _happen(desk: Desk, peer: Peer, event: Event) -> None:
    match event:
        case Send():
            desk.receive(peer, event.data)
        case Step():
            desk.step()
        case Begin():
            desk.begin()
        case Wait():
            desk.wait(event.seconds)
        case Leave():
            desk.leave(peer, event.politely)
        case _:
            assert_never(event)


def play(case: Case) -> Desk:
    """The whole case, then the honest session to its end. Raises `Broken` when a law does not hold."""
    with no_complaint():
        desk = Desk(case)
        peers = [desk.connect(HONEST + 1 + number) for number in range(len(case.streams))]
        for moment in zip_longest(*case.streams):
            for peer, event in zip(peers, moment, strict=True):
                if event is not None:
                    _happen(desk, peer, event)
                    desk.scheduler.check_integrity()
        _end(desk, peers)
    return desk


def _end(desk: Desk, peers: list[Peer]) -> None:
    """The hostile streams go, and the honest session gets its text."""
    for peer in peers:
        desk.leave(peer)
    steps = 0
    while desk.step():
        steps += 1
        if steps > MOST_STEPS:
            raise Broken(f"there is no end after {steps} steps")
    desk.check_honest()
    desk.scheduler.on_close(HONEST, None, desk.now)
    desk.take()
    check_all_returned(desk.scheduler)
