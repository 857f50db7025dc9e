"""Whatever a client sends, the verifier lives, says so in a sentence, and nobody else notices."""

import warnings
from collections import Counter

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from tests.fuzz import garbled, meaningless, mutated
from tests.fuzz.cases import Case
from tests.fuzz.mutated import recorded
from tests.fuzz.wire import UNHEARD, Site

KINDS: dict[str, st.SearchStrategy[Case]] = {
    "garbled": garbled.CASES,
    "meaningless": meaningless.CASES,
    "mutated": mutated.CASES,
}


LEFT = "(left)"
"""End of a call whose client was gone before it could hear of an end."""


def play(cases: st.SearchStrategy[Case], count: int, *, narrow: bool = False) -> Counter[str]:
    """Play so many cases to one server. Return how their calls ended."""
    tally = Counter[str]()
    with Site(narrow=narrow) as site, warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # a case may be long

        # A server that has been harmed tells nothing of smaller cases.
        @settings(max_examples=count, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
        @given(cases)
        def search(case: Case) -> None:
            ends = site.play(case)
            tally.update(LEFT if end == UNHEARD else end.code.name for end in ends)

        search()
    return tally


@pytest.mark.grpc
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [25, pytest.param(5000, marks=pytest.mark.soak)])
def test_no_client_harms_the_server_or_its_neighbour(kind: str, narrow: bool, count: int) -> None:
    tally = play(KINDS[kind], count, narrow=narrow)
    assert tally.total() >= count
    written = tally["OK"] + tally[LEFT]  # how a text ends that was begun
    assert kind != "mutated" or written > count / 8, "cases get beyond the door"


@pytest.mark.grpc
@pytest.mark.parametrize("name", ["tree", "sync"])
def test_a_recorded_conversation_ends_well_if_nothing_is_done_to_it(name: str) -> None:
    with Site() as site:
        ends = (site.play(Case((recorded(name)[0],)))[0] for _ in range(20))
        end = next(end for end in ends if end != UNHEARD)  # gRPC's client may lose the end that it was told
    assert end.code is grpc.StatusCode.OK
