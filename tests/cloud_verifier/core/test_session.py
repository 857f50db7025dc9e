"""Laws of a verifier's session: where arriving nodes go, what a step has for it, and what a step commits."""

import numpy as np
import pytest

from cloud_verifier.core.arrivals import MAX_PLACES
from cloud_verifier.core.kv_memory import KvMemory
from cloud_verifier.core.verify_session import VerifySession
from common.choice import History
from common.errors import Code, LocalError, PeerError
from common.messages import FinishReason, Open, Propose
from tests import wording
from tests.cloud_verifier.core.bench import VOCAB, ask, chain, count, leased, siblings


def make(request: Open | None = None, stop: tuple[int, ...] = (), max_live: int = 32) -> VerifySession:
    return VerifySession(5, request or ask(), VOCAB, frozenset(stop), max_live, now=0.0)


def tokens(session: VerifySession) -> list[int]:
    return [node.token for node in session.tree.speculative()]


def step(session: VerifySession, memory: KvMemory) -> list[int]:
    """Evaluate all there is; the tokens committed."""
    nodes = [session.tree.tip, *session.step_nodes()] if session.may_evaluate_tip else []
    item = session.plan(session.num_prefill, nodes, memory)
    return session.apply(count(item), memory, now=1.0).tokens


def test_both_ids_of_a_duplicate_name_one_node() -> None:
    session = make()
    session.receive(siblings(0, t2=-0.5), 0.0)
    session.receive(siblings(0, t2=-0.5), 0.0)
    session.receive(Propose((3, 4), bytes(2), (1, 3)), 0.0)  # below ids 2 and 1
    assert [(node.token, node.position) for node in session.tree.speculative()] == [(2, 1), (3, 2), (4, 2)]


def test_a_late_chain_that_agrees_is_folded_and_goes_on_at_the_tip() -> None:
    session, memory = leased(make())
    for _ in range(2):
        step(session, memory)
    session.receive(chain(2, 3, 4, 5, anchor=0), 0.0)
    assert session.tree.counts.folded == 2
    assert tokens(session) == [4, 5]
    assert step(session, memory) == [4, 5, 6]


def test_a_late_chain_that_disagrees_is_dead_and_fails_nothing() -> None:
    session, memory = leased(make())
    step(session, memory)
    session.receive(chain(7, 8, anchor=0), 0.0)
    session.receive(chain(9), 0.0)
    assert tokens(session) == []
    assert session.tree.counts.late == 3


def test_a_committed_node_is_named_by_delta_until_the_edge_has_seen_it() -> None:
    session, memory = leased(make())
    session.receive(chain(2, anchor=0), 0.0)
    assert step(session, memory) == [2, 3]
    session.receive(Propose((3, 4), bytes(2), (1, 1)), 0.0)  # crossed the commit
    assert tokens(session) == [4]
    session.receive(Propose((4,), b"\0", (2,), seen_advance=2), 0.0)  # names node 2, at the edge's own tip
    assert session.tree.counts.late == 1
    session.receive(Propose((5,), b"\0", (2,)), 0.0)  # node 3 is live and was not forgotten
    assert tokens(session) == [4, 5]


def test_the_oldest_ids_are_forgotten_by_a_session_that_never_says_what_it_has_seen() -> None:
    session = make()
    session.receive(chain(2, anchor=0), 0.0)
    block = Propose((3,) * 255, bytes(255), (0,) * 255, anchor=0)  # one node with many ids
    for _ in range(MAX_PLACES // 255):
        session.receive(block, 0.0)
    told = 1 + MAX_PLACES // 255 * 255
    assert told == MAX_PLACES - 15
    session.receive(Propose((4,), b"\0", (told,)), 0.0)
    assert tokens(session) == [2, 3, 4], "node 1 is remembered"
    session.receive(Propose((3,) * 30, bytes(30), (0,) * 30, anchor=0), 0.0)
    session.receive(Propose((5,), b"\0", (told + 31,)), 0.0)
    assert tokens(session) == [2, 3, 4], "node 1 is forgotten, a child of it is dead"


def test_nodes_above_the_hard_limit_are_dropped_with_all_below_them() -> None:
    session, memory = leased(make(max_live=4))
    session.receive(chain(2, 3, 4, 5, 6, 7, anchor=0), 0.0)
    assert (tokens(session), session.arrivals.num_dropped) == ([2, 3, 4, 5], 2)
    assert step(session, memory) == [2, 3, 4, 5, 6]
    session.receive(chain(8), 0.0)
    assert tokens(session) == [], "its parent was dropped"
    assert step(session, memory) == [7], "the text is the same"


MALFORMED = {
    "too few log-probabilities": (Propose((2, 3), b"\0", (), 0), Code.INVALID_ARGUMENT),
    "too many log-probabilities": (Propose((), b"\0"), Code.INVALID_ARGUMENT),
    "too few deltas": (Propose((2, 3), b"\0\0", (0,), 0), Code.INVALID_ARGUMENT),
    "deltas without nodes": (Propose((), b"", (1,)), Code.INVALID_ARGUMENT),
    "more seen than committed": (Propose(seen_advance=2), Code.OUT_OF_RANGE),
    "less seen than before": (Propose(seen_advance=-1), Code.OUT_OF_RANGE),
    "an anchor beyond the tip": (chain(2, anchor=2), Code.OUT_OF_RANGE),
    "an anchor in the prompt": (chain(2, anchor=-1), Code.OUT_OF_RANGE),
    "an anchor that is missing": (Propose((2,), b"\0", (0,)), Code.INVALID_ARGUMENT),
    "a parent before node 1": (chain(2), Code.INVALID_ARGUMENT),
    "a parent yet to come": (Propose((2, 3), b"\0\0", (0, -1), 0), Code.INVALID_ARGUMENT),
    "a token beyond the vocabulary": (chain(10, anchor=0), Code.OUT_OF_RANGE),
    "a token below the vocabulary": (chain(-1, anchor=0), Code.OUT_OF_RANGE),
    "a node beyond the text": (chain(*[2] * 5, anchor=0), Code.OUT_OF_RANGE),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_no_honest_edge_sends_is_refused(case: str) -> None:
    message, code = MALFORMED[case]
    session, memory = leased(make(ask(max_tokens=4)))
    step(session, memory)
    with wording.raises(PeerError) as caught:
        session.receive(message, 0.0)
    assert caught.value.code is code


def test_the_last_position_asked_for_may_be_proposed_and_is_not_evaluated() -> None:
    session, memory = leased(make(ask(max_tokens=3)))
    session.receive(chain(2, 3, 4, anchor=0), 0.0)
    assert [node.token for node in session.step_nodes()] == [2, 3]
    assert step(session, memory) == [2, 3, 4]
    assert session.finish_reason() is FinishReason.LENGTH
    assert session.tree.counts.accepted == 3


def test_a_step_keeps_the_slots_of_the_text_and_frees_the_others() -> None:
    session, memory = leased(make())
    session.receive(Propose((5, 2, 6, 3), bytes(4), (0, 0, 2, 2), 0), 0.0)
    item = session.plan(0, [session.tree.tip, *session.step_nodes()], memory)
    progress = session.apply(count(item), memory, 1.0)
    assert (progress.tokens, progress.server_made, progress.finish) == ([2, 3, 4], 0b100, None)
    assert session.lease.slots.view.tolist() == [item.slots[0], item.slots[2], item.slots[4]]
    assert memory.pool.num_free == 47


def test_nodes_that_came_during_a_step_live_if_they_hang_below_what_it_committed() -> None:
    session, memory = leased(make())
    item = session.plan(0, [session.tree.tip], memory)
    session.receive(chain(2, 3, anchor=0), 0.5)
    session.receive(siblings(0, t7=-0.5), 0.5)
    progress = session.apply(count(item), memory, 1.0)
    assert (progress.tokens, progress.server_made) == ([2], 0)
    assert tokens(session) == [3]


def test_prompt_and_generated_are_handed_over_only_for_penalties() -> None:
    session, memory = leased(make(ask((4, 5), presence_penalty=1.0)))
    step(session, memory)
    step(session, memory)
    item = session.plan(0, [session.tree.tip], memory)
    assert item.prompt is not None
    assert item.generated is not None
    assert (item.prompt.tolist(), item.generated.tolist()) == ([4, 5], [6]), "row 0 counts itself"
    assert item.prompt.dtype == item.generated.dtype == np.int32
    plain, memory = leased(make(ask((4, 5))))
    assert plain.plan(1, [plain.tree.tip], memory).prompt is None


def test_the_history_of_a_text_is_that_of_its_committed_tokens() -> None:
    """From step to step, and once more from the beginning where the KV was dropped."""
    request = ask((4, 5), repetition_penalty=1.5, frequency_penalty=0.5)
    session, memory = leased(make(request))
    lengths = []
    for turn in range(6):
        if turn == 4:
            session.preempt(memory)
            session.readmit(memory.open("", session.tree.committed[:-1], 20), 20, 0.0)
        item = session.plan(session.num_prefill, [session.tree.tip], memory)
        expected = History.of(request.sampling, item.prompt, item.generated)
        assert item.history is not None
        lengths.append(item.history.num_generated)
        for field in ("tokens", "bias", "factor", "minus"):
            kept = getattr(item.history.changes, field)
            assert kept.tolist() == getattr(expected.changes, field).tolist(), (turn, field)
        session.apply(count(item), memory, now=1.0)
    assert lengths == [0, 0, 1, 2, 0, 4]


def test_an_illegal_move_is_our_own_fault_and_changes_nothing() -> None:
    session, memory = make(), KvMemory(20)
    with pytest.raises(LocalError, match="new"):
        session.preempt(memory)
    session.admit(memory.open("", (), 5), 5, 5)
    session.preempt(memory)
    session.readmit(memory.open("", (), 5), 5, 1.0)
    session.end()
    with pytest.raises(LocalError, match="ended"):
        session.end()
    assert session.ended


def test_without_fill_a_session_waits_for_a_live_node() -> None:
    session, memory = leased(make(ask(fill=False)))
    seen = [session.ready]
    session.receive(chain(2, anchor=0), 2.0)
    seen.append(session.ready)
    assert session.ready_at == 2.0
    assert step(session, memory) == [2, 3]
    seen.append(session.ready)
    session.receive(chain(7, anchor=0), 3.0)  # a dead node is no draft
    assert [*seen, session.ready] == [False, True, False, False]


def test_without_fill_a_prompt_is_read_while_no_draft_is_there() -> None:
    session, memory = leased(make(ask((4, 5, 6), fill=False)))
    assert session.ready
    assert step(session, memory) == []
    assert (session.num_prefill, session.ready) == (0, False)


def test_an_empty_propose_grants_one_bare_step() -> None:
    session, memory = leased(make(ask((4, 5), fill=False)))
    session.receive(Propose(), 0.0)
    first = session.plan(1, [], memory)  # a prefill chunk leaves it
    session.apply(count(first), memory, 1.0)
    assert session.ready
    assert step(session, memory) == [6]
    assert not session.ready


def test_a_grant_that_comes_during_a_step_is_for_the_next() -> None:
    session, memory = leased(make(ask(fill=False)))
    session.receive(Propose(), 0.0)
    item = session.plan(0, [session.tree.tip], memory)
    session.receive(Propose(), 0.5)
    session.apply(count(item), memory, 1.0)
    assert session.ready
