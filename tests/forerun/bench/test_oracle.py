"""An oracle is right as often as it was asked to be, and says truthfully how sure it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Reroot
from forerun.bench.formula import VOCAB_SIZE, formula_text
from forerun.bench.oracle import KnowingDrafter, Oracle, Recording
from forerun.bench.texts import Text

PROMPT = (1, 2, 3)
LENGTH = 1500
TEXT = Text(7, PROMPT, formula_text(PROMPT, LENGTH))
POSITIONS = range(len(PROMPT), len(PROMPT) + LENGTH)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.8, 1.0])
def test_the_first_candidate_is_right_as_often_as_asked(acceptance: float) -> None:
    oracle = Oracle(TEXT, acceptance, VOCAB_SIZE)
    right = sum(oracle.on_path(position)[0][0] == TEXT.whole[position] for position in POSITIONS)
    error = 4 * math.sqrt(acceptance * (1 - acceptance) / LENGTH)  # of a mean of so many draws, four times
    assert right / LENGTH == pytest.approx(acceptance, abs=error + 1e-9)


def test_its_scores_are_the_logarithms_of_true_chances() -> None:
    oracle = Oracle(TEXT, 0.7, VOCAB_SIZE)
    said = [(oracle.on_path(position), TEXT.whole[position]) for position in POSITIONS]
    for low, high in ((0.0, 0.4), (0.4, 0.8), (0.8, 1.01)):
        some = [
            (math.exp(score), token == right)
            for (tokens, scores), right in said
            for token, score in zip(tokens, scores, strict=True)
            if low <= math.exp(score) < high
        ]
        promised = sum(chance for chance, _ in some) / len(some)
        kept = sum(hit for _, hit in some) / len(some)
        assert kept == pytest.approx(promised, abs=4 * math.sqrt(0.25 / len(some)))


def test_candidates_are_different_tokens_of_the_vocabulary() -> None:
    oracle = Oracle(Text(0, (1,), (15, 0, 9, 3)), 0.5, 16)
    for position in range(1, 5):
        for tokens, _ in (oracle.on_path(position), oracle.off_path(position, position)):
            assert len(set(tokens)) == len(tokens)
            assert all(0 <= token < 16 for token in tokens)


def test_every_scheme_meets_the_same_draft_and_other_seeds_another() -> None:
    one, same, other = (Oracle(TEXT, 0.6, VOCAB_SIZE, seed) for seed in (1, 1, 2))
    said = [[oracle.on_path(position) for position in POSITIONS[:50]] for oracle in (one, same, other)]
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize(("acceptance", "vocab_size"), [(-0.1, 99), (1.1, 99), (0.5, 8)])
def test_what_no_oracle_can_be_is_refused(acceptance: float, vocab_size: int) -> None:
    with pytest.raises(UserError):
        Oracle(TEXT, acceptance, vocab_size)


# The drafter ------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_below_a_wrong_node_everything_is_off_the_path(steps: list[bool]) -> None:
    """A chain of drafted nodes, each right or wrong by its token; the oracle knows the text as long as all
    were right, and the right token is the only one that keeps it there."""
    oracle = Oracle(TEXT, 1.0, VOCAB_SIZE)  # its first candidate is right wherever it knows the text
    drafter = KnowingDrafter(TEXT, oracle)
    tip = len(PROMPT) - 1
    drafter.start(PROMPT, 1, SamplingParams())
    drafter.expand([DraftRow(1, None, PROMPT[-1], tip)])
    on_path = True
    for depth, right in enumerate(steps, 1):
        position = tip + depth
        token = TEXT.whole[position] if right else (TEXT.whole[position] + 1) % VOCAB_SIZE
        found = drafter.expand([DraftRow(depth + 1, depth, token, position)])[0]
        on_path = on_path and right
        assert (found.tokens[0] == TEXT.whole[position + 1]) is on_path


def test_it_goes_on_below_a_tip_that_it_has_drafted_and_below_the_servers_own() -> None:
    drafter = KnowingDrafter(TEXT, Oracle(TEXT, 1.0, VOCAB_SIZE))
    tip, whole = len(PROMPT) - 1, TEXT.whole
    drafter.start(PROMPT, 1, SamplingParams())
    drafter.expand([DraftRow(1, None, PROMPT[-1], tip)])
    drafter.expand([DraftRow(2, 1, whole[tip + 1], tip + 1)])
    drafter.reroot(Reroot(((2, whole[tip + 1]),), ()))  # the drafted node is the tip
    found = drafter.expand([DraftRow(3, 2, whole[tip + 2], tip + 2)])[0]
    assert found.tokens[0] == whole[tip + 3]
    drafter.reroot(Reroot(((9, whole[tip + 2]),), (3,)))  # the server made another one
    found = drafter.expand([DraftRow(9, None, whole[tip + 2], tip + 2)])[0]
    assert found.tokens[0] == whole[tip + 3]
    assert drafter.counts.asked == drafter.counts.right == 4


def test_a_text_that_has_left_the_reference_is_not_known() -> None:
    drafter = KnowingDrafter(TEXT, Oracle(TEXT, 1.0, VOCAB_SIZE))
    tip = len(PROMPT) - 1
    drafter.start(PROMPT, 1, SamplingParams())
    other = (TEXT.whole[tip + 1] + 1) % VOCAB_SIZE
    drafter.reroot(Reroot(((5, other),), ()))
    found = drafter.expand([DraftRow(5, None, other, tip + 1)])[0]
    assert found.tokens[0] != TEXT.whole[tip + 2]


def test_a_recording_says_on_the_path_what_was_heard_there() -> None:
    text = Text(0, (1, 2), (5, 6, 7))
    said = [((5, 9), (-0.1, -3.0)), ((8, 6), (-0.5, -1.0)), ((7, 1), (-0.2, -2.0))]
    recording = Recording(text, said)
    assert [recording.on_path(position) for position in (2, 3, 4)] == said
    assert recording.off_path(3, 4) in said
    assert recording.on_path(5) in said  # behind the text nothing was heard
