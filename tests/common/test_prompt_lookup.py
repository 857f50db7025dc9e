"""Laws of drafting without a model: it copies what is there, keeps what it promises, and else is silent."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.prompt_lookup import NO_TEXTS, RECYCLED, SHARED_AT_ONCE, PromptLookup, SharedTexts, grow_guesses
from common.suffix_index import GrowingIndex
from common.tree import Node, SpeculationTree


def written(*tokens: int, prompt: tuple[int, ...] = (0,), shared: SharedTexts = NO_TEXTS) -> PromptLookup:
    recall = PromptLookup(prompt, shared)
    for token in tokens:
        recall.append(token)
    return recall


def likeliest(recall: PromptLookup, most: int = 8, path: tuple[int, ...] = ()) -> list[int]:
    """The tokens of the likeliest path."""
    tokens, guesses = list[int](), recall.guess(most, path)
    at: int | None = -1
    while at is not None:
        at = next((n for n, guess in enumerate(guesses) if guess.parent == at), None)
        tokens += [] if at is None else [guesses[at].token]
    return tokens


def next_tokens(recall: PromptLookup, path: tuple[int, ...] = ()) -> dict[int, float]:
    """The chance of each token that is guessed to come next."""
    return {each.token: math.exp(each.logprob) for each in recall.guess(8, path) if each.parent < 0}


def test_tokens_that_followed_the_same_tokens_are_guessed() -> None:
    assert likeliest(PromptLookup((1, 2, 3, 4, 5, 9, 1, 2)), most=3) == [3, 4, 5]


def test_a_token_that_is_new_foretells_nothing() -> None:
    assert PromptLookup((1, 2, 3, 7)).guess(8) == []
    assert PromptLookup((1,)).guess(8) == []


def test_the_longest_match_wins_over_a_newer_one() -> None:
    assert likeliest(PromptLookup((7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2)), most=1) == [30]


def test_of_equal_matches_the_newest_comes_first_and_all_are_guessed() -> None:
    recall = PromptLookup((7, 1, 2, 30, 7, 1, 2, 40, 7, 1, 2))
    assert likeliest(recall, most=1) == [40]
    assert sorted(next_tokens(recall)) == [30, 40]


def test_a_token_that_followed_more_often_has_a_higher_chance() -> None:
    chances = next_tokens(PromptLookup((91, 5, 30, 92, 5, 40, 93, 5, 30, 94, 5, 30, 95, 5)))
    assert chances[30] > 3 * chances[40]


def test_a_token_that_followed_everywhere_is_trusted_more_than_one_that_followed_once() -> None:
    once, always = PromptLookup((1, 2, 3, 9, 1, 2)), PromptLookup((1, 2, 3, 9, 1, 2, 3, 8, 1, 2))
    assert next_tokens(always)[3] > next_tokens(once)[3]


def test_a_tree_divides_where_the_places_do() -> None:
    guesses = PromptLookup((91, 2, 3, 4, 50, 92, 2, 3, 4, 60, 93, 2)).guess(6)
    assert [(guess.parent, guess.token) for guess in guesses[:2]] == [(-1, 3), (0, 4)]
    assert {guess.token for guess in guesses if guess.parent == 1} == {50, 60}


def test_a_loop_is_foretold_round_after_round() -> None:
    assert likeliest(written(*(1, 2, 3) * 20), most=8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_copy_is_followed_past_places_that_read_alike() -> None:
    copied = (50, 51, 1, 2, 52, 53)
    noise = tuple(token for n in range(20) for token in (60 + n, 1, 2, 90 + n))
    recall = written(50, 51, 1, 2, prompt=(*copied, *noise))
    assert likeliest(recall, most=2) == [52, 53]


def test_the_longer_the_match_the_more_is_promised() -> None:
    promises = [guess.logprob for guess in PromptLookup((1, 2, *range(10, 60), 1, 2)).guess(6)]
    assert promises == sorted(promises)
    assert promises[0] < promises[-1]


def test_nothing_is_guessed_where_guesses_have_been_wrong() -> None:
    """Tokens of a hundred kinds in no order: the last two stood there before, and foretell nothing."""
    draw = random.Random(1)
    recall = written(*(draw.randrange(100) for _ in range(4_000)))
    guessed = 0
    for _ in range(200):
        recall.append(draw.randrange(100))
        guessed += len(recall.guess(16))
    assert guessed <= 50  # a row in four steps


def test_guesses_are_right_as_often_as_promised() -> None:
    """A text that copies a phrase and errs at one token in five."""
    draw = random.Random(2)
    phrase = [draw.randrange(1000) for _ in range(40)]
    text = [draw.randrange(1000) if draw.random() < 0.2 else phrase[n % 40] for n in range(4000)]
    recall = PromptLookup((0,))
    meant, kept, count = 0.0, 0, 0
    for token in text:
        for _, guess, logprob in recall.guess(1)[:1]:
            meant, kept, count = meant + math.exp(logprob), kept + (guess == token), count + 1
        recall.append(token)
    assert count > 1000
    assert kept / count == pytest.approx(meant / count, abs=0.02)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 6), st.lists(st.integers(0, 3)))
def test_a_guess_is_always_a_place_where_the_text_read_alike(
    text: list[int], split: int, path: list[int]
) -> None:
    recall = written(*text[split:], prompt=tuple(text[:split]))
    whole = [*text, *path]
    paths = dict[int, list[int]]({-1: whole})
    for at, (parent, token, logprob) in enumerate(recall.guess(5, path)):
        before = paths[parent]
        assert parent < at
        assert (before[-1], token) in {*pairwise(text), *pairwise(before)}
        assert logprob < 0
        paths[at] = [*before, token]


def test_guessing_changes_no_state() -> None:
    one, other = PromptLookup((1, 2, 3, 1, 2)), PromptLookup((1, 2, 3, 1, 2))
    for token in (3, 1, 9, 2, 1, 2):
        other.guess(5)
        other.guess(5, (1, 2))
        one.append(token)
        other.append(token)
        assert one.guess(5) == other.guess(5)


def texts(capacity: int = 1000) -> SharedTexts:
    return SharedTexts(GrowingIndex(capacity=capacity))


def ended(shared: SharedTexts, *tokens: int, prompt: tuple[int, ...] = (0,)) -> None:
    written(*tokens, prompt=prompt, shared=shared).close()


def test_a_text_is_shared_when_it_has_ended() -> None:
    shared = texts()
    recall = written(5, 6, 7, 8, shared=shared)
    assert PromptLookup((3, 0, 5, 6), shared).guess(8) == []
    recall.close()
    assert likeliest(PromptLookup((3, 0, 5, 6), shared)) == [7, 8]
    assert PromptLookup((3, 5, 7, 8), shared).guess(8) == []


def test_a_long_text_is_shared_while_it_is_written() -> None:
    shared = texts()
    written(*range(100, 100 + SHARED_AT_ONCE), shared=shared)
    assert likeliest(PromptLookup((101, 102), shared), most=2) == [103, 104]


def test_a_text_is_shared_once_and_its_parts_are_compared_across_their_seam() -> None:
    shared = texts()
    recall = written(5, 6, 7, shared=shared)
    recall.close()
    recall.close()
    recall.append(8)
    recall.close()
    assert shared.written is not None
    assert len(shared.written) == 4
    assert next_tokens(PromptLookup((5, 6, 7), shared))[8] > next_tokens(PromptLookup((9, 7), shared))[8]


def test_a_prompt_is_not_shared() -> None:
    shared = texts()
    ended(shared, 7, prompt=(5, 6))
    assert PromptLookup((3, 5), shared).guess(8) == []
    assert likeliest(PromptLookup((5, 6), shared)) == [7]


def test_the_texts_own_words_and_those_of_others_are_both_offered() -> None:
    shared = texts()
    ended(shared, 5, 6, 7, 8)
    assert set(next_tokens(PromptLookup((5, 6, 7, 9, 5, 6, 7), shared))) == {8, 9}


def test_files_are_looked_up_and_learn_nothing() -> None:
    file = GrowingIndex((5, 6, 7, 8, 9))
    recall = PromptLookup((5, 6), SharedTexts(None, (file,)))
    assert likeliest(recall) == [7, 8, 9]
    recall.append(1)
    recall.close()
    assert len(file) == 5


def test_trust_is_learnt_apart_for_each_source() -> None:
    draw = random.Random(4)
    shared = texts()
    ended(shared, *(draw.randrange(50) for _ in range(900)))
    recall = PromptLookup((1, 2, 3) * 3, shared)
    for _ in range(60):
        for token in (1, 2, 3):
            recall.append(token)
    chances = next_tokens(recall)
    assert max(chances.values()) == chances[1] > 0.9
    assert all(chance < 0.1 for token, chance in chances.items() if token != 1)


def dead_branch(recall: PromptLookup) -> None:
    """The target wrote 3 after (1, 2); the guess 7 died, and so did what hung below."""
    tip = Node(1, None, 2, 1, 0.0, 0.0, committed=True, choice=3)
    wrong = Node(2, 1, 7, 2, -1.0, -1.0, choice=8)
    below = Node(3, 2, 8, 3, -1.0, -2.0, choice=9)
    unknown = Node(4, 2, 5, 3, -1.0, -2.0)
    recall.append(3)
    recall.recycle([tip, wrong, below, unknown], (1, 2, 3))


def test_choices_on_a_dead_branch_are_guessed_when_the_text_gets_there() -> None:
    recall = PromptLookup((1, 2))
    dead_branch(recall)
    assert recall.guess(8) == []
    recall.append(7)
    assert likeliest(recall, most=2) == [8]
    assert likeliest(recall, path=(8,)) == [9]


def test_dead_branches_are_remembered_up_to_a_bound() -> None:
    recall = PromptLookup((1, 2))
    for _ in range(RECYCLED):
        dead_branch(recall)
    assert len(recall._recycled) <= RECYCLED * 9 // 8


def guessed(tree: SpeculationTree) -> list[int]:
    return [node.token for node in tree.speculative()]


def test_guesses_hang_below_the_tip_with_their_promise() -> None:
    text = (1, 2, 3, 4, 9, 1, 2)
    tree = SpeculationTree(text)
    grow_guesses(tree, PromptLookup(text).guess, last_position=30, most=2)
    assert guessed(tree) == [3, 4]
    first, second = tree.speculative()
    assert second.path_logprob == pytest.approx(first.logprob + second.logprob)


def test_guesses_go_on_where_the_likeliest_path_ends() -> None:
    text = (1, 2, 3, 4, 9, 1)
    tree = SpeculationTree(text)
    drafted = tree.grow(tree.tip, 2, -0.1)
    tree.grow(tree.tip, 5, -3.0)
    grow_guesses(tree, PromptLookup(text).guess, last_position=30, most=1)
    assert [tree.live[child].token for child in drafted.children.values()] == [3]
    assert [node.token for node in tree.likeliest_path()] == [2, 3]


def test_no_guess_lies_where_it_could_save_nothing() -> None:
    """The token before the last position tells what stands there."""
    text = (1, 2, 3, 1, 2)
    for last, count in ((4, 0), (5, 0), (6, 1), (7, 2)):
        tree = SpeculationTree(text)
        grow_guesses(tree, PromptLookup(text).guess, last, most=8)
        assert tree.num_speculative == count
