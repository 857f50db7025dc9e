"""An oracle is right as often as it was asked to be, and says truthfully how sure it is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow
from lab.bench.formula import VOCAB_SIZE, formula_text
from lab.bench.load import LoadText
from lab.bench.oracle import KnowingDrafter, Oracle

PROMPT = (1, 2, 3)
LENGTH = 1500
TEXT = LoadText(7, PROMPT, formula_text(PROMPT, LENGTH))
POSITIONS = range(len(PROMPT), len(PROMPT) + LENGTH)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.8, 1.0])
def test_the_first_candidate_is_right_as_often_as_asked(acceptance: float) -> None:
    oracle = Oracle(TEXT, acceptance, VOCAB_SIZE)
    right = sum(oracle.candidates(position)[0][0] == TEXT.whole[position] for position in POSITIONS)
    error = 4 * math.sqrt(acceptance * (1 - acceptance) / LENGTH)  # of a mean of so many draws, four times
    assert right / LENGTH == pytest.approx(acceptance, abs=error + 1e-9)


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
