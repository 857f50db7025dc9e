"""What a device learns from commits of a verifier that guesses by itself."""

import pytest

from common.messages import Commit
from edge_client.core.server_pace import DEPTHS, ServerPace


def commit(num_tokens: int, guessed: int = 0, server_made: int = 0) -> Commit:
    return Commit(10, tuple(range(num_tokens)), server_made=server_made, guessed=guessed)


def after(*commits: Commit, times: int = 200) -> ServerPace:
    pace = ServerPace()
    for _ in range(times):
        for each in commits:
            pace.learn(each)
    return pace


def test_a_verifier_that_never_guesses_writes_a_token_a_turn_and_all_drafts_are_news() -> None:
    pace = after(commit(1, server_made=1), commit(5), commit(3, server_made=0b100))
    assert pace.tokens == 1.0
    assert [pace.news(depth) for depth in range(DEPTHS)] == [1.0] * DEPTHS


def test_a_turn_brings_the_leading_guesses_and_one_token() -> None:
    both = after(commit(3, guessed=0b011, server_made=0b111), commit(6, guessed=0b100011))
    assert both.tokens == pytest.approx(3.0, rel=0.01)  # the guess behind the gap would not have been reached


def test_all_tokens_of_a_commit_may_have_been_guessed() -> None:
    assert after(commit(4, guessed=0b1111)).tokens == pytest.approx(4.0, rel=0.01)


def test_right_drafts_are_news_only_beyond_what_the_verifier_finds() -> None:
    pace = after(commit(5, guessed=0b00011))
    assert [round(pace.news(depth), 1) for depth in range(4)] == [0.0, 0.0, 1.0, 1.0]


def test_tokens_that_the_edge_did_not_propose_say_nothing_about_its_drafts() -> None:
    assert after(commit(5, guessed=0b1111, server_made=0b11111)).news(0) == 1.0


def test_a_known_node_is_worth_drafting_for_what_hangs_below_it() -> None:
    pace = after(commit(5, guessed=0b00011))
    best = pace.best_news(survival=0.5)
    assert best[0] == pytest.approx(0.25, abs=0.02)
    assert best[2:] == pytest.approx([1.0] * (DEPTHS - 2), abs=0.02)
    assert best[-1] == 1.0
