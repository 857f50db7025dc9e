"""What a relay tells a device: commits in the numbers of its stream, and the middle model's choices."""

from typing import Any

import pytest

from common.acceptance import make_acceptance
from common.errors import PeerError, UserError
from common.messages import Commit, Hint, Open, Opened, Propose, ServerMessage
from common.sampling import SamplingParams
from edge_client.core.effects import Effect, Expansion, Send
from schemes.policies.tree import TreePolicy
from schemes.relay.session import CREDIT, RelaySession, config_of

SAMPLING = SamplingParams(max_tokens=40)
SURE = (9.0, 1.0, 0.0, -1.0, -2.0)  # scores of a draft's five candidates


def opened(hints: bool = True, **config: Any) -> RelaySession:
    """Open since 1.0, the middle model's first step under way."""
    request = Open((7, 8), SAMPLING, b"print", hints=hints)
    session = RelaySession(request, config_of(request, b"print", **config), TreePolicy())
    session.edge.start(0.5)
    effects(session)
    session.on_message(Opened(1, 64, hold_us=3, cached=1), 1.0)
    assert session.answers() == [Opened(1, CREDIT, hold_us=3, cached=1)]
    effects(session)
    return session


def effects(session: RelaySession) -> list[Effect]:
    """Carry out the effects as a driver does."""
    effects = session.edge.effects()
    for effect in effects:
        if isinstance(effect, Send):
            session.sent(effect.message)
    return effects


def drafted(session: RelaySession, tokens: tuple[int, ...], now: float) -> list[ServerMessage]:
    """Answer the draft step under way with the same candidates for each row."""
    busy = [node.id for node in session.edge.tree.live.values() if node.busy]
    session.edge.on_drafted([Expansion(node, tokens, SURE[: len(tokens)]) for node in busy], now)
    session.edge.check_integrity()
    return session.answers()


def proposed(effects: list[Effect]) -> list[Propose]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Propose)]


def test_what_the_middle_model_says_of_a_node_counts_and_not_what_the_device_says() -> None:
    """Whichever of them comes first."""
    for device_first in (True, False):
        session = opened()
        message = Propose((4, 6), b"\x00\x00", (0, 0), anchor=1)  # both are certain, says the device
        if device_first:
            session.on_propose(message, 1.1)
        drafted(session, (5, 4, 3, 2, 1), 1.2)
        if not device_first:
            session.on_propose(message, 1.3)
        children = {
            token: session.edge.tree.live[node] for token, node in session.edge.tree.tip.children.items()
        }
        assert children[5].logprob > -0.1
        assert max(children[4].logprob, children[6].logprob) < -1.0
        session.edge.check_integrity()


def test_the_middle_models_choices_are_hints_at_places_that_the_device_knows() -> None:
    session = opened()
    assert drafted(session, (5, 4, 3, 2, 1), 1.1) == [Hint(0, 1, (), (5,))]
    session.on_propose(Propose((5,), b"\x00", anchor=1), 1.2)
    hints = drafted(session, (6, 4, 3, 2, 1), 1.3)
    assert Hint(1, 0, (), (6,)) in hints, "the device's first node"
    assert all(isinstance(hint, Hint) for hint in hints)


def test_a_commit_goes_down_in_the_numbers_of_the_devices_stream() -> None:
    """The device's message came at 1.1 and left at once. The middle model drafted token 6 alone."""
    session = opened()
    session.on_propose(Propose((5,), b"\x00", anchor=1), 1.1)
    effects(session)
    drafted(session, (6, 5, 3, 2, 1), 1.2)
    number = 1 + len(proposed(effects(session)))
    session.on_message(
        Commit(2, (5, 6), echo=number, hold_us=7, queue_us=1, compute_us=2, credit=9, evaluated=3), 1.4
    )
    held = 100_000  # from the device's message to the relay's last, microseconds
    assert session.answers() == [
        Commit(2, (5, 6), server_made=0b10, echo=1, hold_us=7 + held, queue_us=1, compute_us=2, evaluated=3)
    ]


@pytest.mark.parametrize(
    "message",
    [
        Propose((5,), b"\x00", anchor=9),
        Propose((5,), b"\x00", (7,)),
        Propose((5,), b"\x00", anchor=1, seen_advance=1),
        Propose((100,), b"\x00", anchor=1),
    ],
)
def test_a_device_that_breaks_a_rule_is_told_so(message: Propose) -> None:
    with pytest.raises(PeerError):
        opened(vocab_size=100).on_propose(message, 1.1)


def test_a_rule_that_draws_is_refused() -> None:
    request = Open((7, 8), SAMPLING, b"print", acceptance=make_acceptance("rejection"))
    with pytest.raises(UserError, match="coupled only"):
        config_of(request, b"print")
