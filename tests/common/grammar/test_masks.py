"""Masks along a tree: a function of the path alone, whichever paths were asked for before."""

import re
import threading
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.grammar import Grammars, Masks, Matcher, Tokens
from common.grammar.masks import LEXER_BYTES, Path
from tests import wording
from tests.common.grammar import vocabulary as v

pytestmark = pytest.mark.grammar

OBJECT = '{"grammars": [{"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]}'
GRAMMARS = (
    r"start: /(ab)+/",
    r'start: ("a" | "b" "é")* <call>?',
    OBJECT,
    'start: few "b"\nfew[max_tokens=2]: /a*/',  # counts tokens, so its matcher cannot go back
    'start: "a" "z"',  # the vocabulary cannot write it
)


def grammars(capacity: int = 8) -> Grammars:
    return Grammars(Tokens(v.PIECES, v.SPECIAL, v.EOS, v.WIDTH), capacity)


@cache
def shared() -> Grammars:
    return grammars()


def ids(*path: int) -> Path:
    return np.array(path, np.int32)


def allowed_after(matcher: Matcher, *path: int) -> list[int] | None:
    mask = matcher.allowed(ids(*path))
    return None if mask is None else np.flatnonzero(mask).tolist()


@given(
    st.sampled_from(GRAMMARS), st.lists(st.lists(st.integers(0, v.WIDTH), max_size=6), min_size=2, max_size=8)
)
def test_a_mask_does_not_depend_on_the_paths_asked_before(grammar: str, paths: list[list[int]]) -> None:
    matcher = shared().matcher(grammar)
    for path in paths:
        assert allowed_after(matcher, *path) == allowed_after(shared().matcher(grammar), *path)


def test_texts_of_a_regular_expression_are_exactly_those_that_masks_allow() -> None:
    matcher = shared().matcher(r"start: /(ab|b1)*a?/")
    some = (v.A, v.B, v.AB, v.BA, v.ONE)
    for path in (path for length in range(4) for path in product(some, repeat=length)):
        text = b"".join(v.PIECES[token] or b"" for token in path)
        complete = re.fullmatch(rb"(ab|b1)*a?", text) is not None
        allowed = allowed_after(matcher, *path)
        assert (allowed is not None and v.END in allowed) == complete


def test_all_that_fits_is_allowed_not_only_the_usual_spelling() -> None:
    assert allowed_after(shared().matcher('start: "ab"')) == [v.A, v.AB]


def test_a_path_that_breaks_the_grammar_has_no_mask_and_breaks_nothing() -> None:
    matcher = shared().matcher("start: /(ab)+/")
    assert allowed_after(matcher, v.B) is None
    assert allowed_after(matcher, v.A, v.A, v.B) is None
    assert allowed_after(matcher, v.WIDTH + 5) is None
    assert allowed_after(matcher, -1) is None
    assert allowed_after(matcher, v.AB, v.CALL) is None
    assert allowed_after(matcher, v.A) == [v.B, v.BA]


def test_behind_an_end_token_come_only_end_tokens() -> None:
    matcher = shared().matcher("start: /(ab)+/")
    assert allowed_after(matcher, v.AB, v.TURN) == [v.END, v.TURN]
    assert allowed_after(matcher, v.AB, v.END, v.TURN) == [v.END, v.TURN]
    assert allowed_after(matcher, v.AB, v.END, v.A) is None
    assert allowed_after(matcher, v.A, v.END) is None  # the text was not complete


def test_where_the_grammar_becomes_too_complex_the_text_can_only_end() -> None:
    words = " | ".join(f'"a{"b" * (number % 7)}{number}"' for number in range(5000))
    matcher = shared().matcher(f"start: {words}")
    assert allowed_after(matcher, v.A) == [v.END, v.TURN]
    assert allowed_after(matcher, v.A, v.END) == [v.END, v.TURN]
    assert allowed_after(matcher, v.A, v.B) is None
    assert allowed_after(matcher) == [v.A, v.AB]


MANY_STATES = r"start: /(a|b)*a(a|b){20}/"
"""Its lexer has 2^20 states, and some texts of a few thousand letters bring it to its limit."""


def letters(seed: int, number: int) -> Path:
    return np.random.default_rng(seed).choice(np.array([v.A, v.B], np.int32), number)


def test_a_text_that_needs_too_many_states_ends_no_other_with_the_same_grammar() -> None:
    some = grammars()
    before, others = some.matcher(MANY_STATES), letters(2, 500)
    alone = grammars().matcher(MANY_STATES)
    expected = [allowed_after(alone, *others[:length]) for length in (400, 500)]
    assert allowed_after(before, *others[:400]) == expected[0]
    assert allowed_after(some.matcher(MANY_STATES), *letters(1, 12_000)) == [v.END, v.TURN], "it can only end"
    for matcher in (before, some.matcher(MANY_STATES)):
        assert [allowed_after(matcher, *others[:length]) for length in (400, 500)] == expected


@pytest.mark.slow
def test_a_text_that_is_resumed_goes_as_far_as_without() -> None:
    """Masks of many tokens need many states, too, of which a text that is read again has none."""
    words = [bytes(word) for size in range(1, 9) for word in product(b"ab", repeat=size)]
    end = len(words)
    some = Grammars(Tokens([*words, None], (end,), (end,), end + 1))
    text = np.random.default_rng(1).integers(0, 2, 300, np.int32)  # single letters
    whole = some.matcher(MANY_STATES)
    masks = [whole.allowed(text[:length]) for length in range(300)]
    for start in (60, 240):
        resumed = Grammars(some.tokens).matcher(MANY_STATES)
        for length in range(start, 300):
            np.testing.assert_array_equal(resumed.allowed(text[:length]), masks[length])


def test_a_path_that_is_read_too_slowly_is_refused() -> None:
    matcher = grammars().matcher("start: /a*/")
    with wording.raises(UserError):
        matcher.allowed(ids(*[v.A] * 100), patience=-1.0)
    assert v.A in (allowed_after(matcher, v.A) or ()), "another path may be read"


def test_grammars_beyond_their_bytes_are_forgotten_and_made_again() -> None:
    some = Grammars(Tokens(v.PIECES, v.SPECIAL, v.EOS, v.WIDTH), max_bytes=3 * LEXER_BYTES)
    masks = Masks(some)
    for _ in range(2):
        for key in range(8):
            mask = masks.allowed(key, f"start: /a{{1,{key + 1}}}/", ids(v.A))
            assert mask is not None
            assert mask[v.A] == (key > 0)
            assert not some.are_too_large


@pytest.mark.parametrize(
    "grammar",
    [
        "start: e\ne: e e e e | e e e | e e | /[ab ]/ |",
        "start: a\na: b a b | a b | b |\nb: a b a | b a | /[ab ]/ |",
    ],
)
def test_an_ambiguous_grammar_becomes_too_complex_before_its_masks_become_slow(grammar: str) -> None:
    """Rows of 2,000 items took a second each, some 80 tokens long."""
    matcher = shared().matcher(grammar)
    ends = [v.END, v.TURN]
    length = next(length for length in range(160) if allowed_after(matcher, *[v.A] * length) == ends)
    assert length > 2, "a little ambiguity is no harm"
    assert allowed_after(shared().matcher(grammar), *[v.A] * length) == ends, (
        "so it is for a text that is resumed"
    )
    assert allowed_after(matcher, *[v.A] * length, v.END) == ends


def test_the_grammars_least_recently_used_are_forgotten_and_made_anew() -> None:
    few = grammars(capacity=1)
    first = few.matcher("start: /a+/")
    assert allowed_after(first, v.A) == [v.A, v.END, v.TURN]
    assert allowed_after(few.matcher("start: /b+/")) == [v.B]
    assert allowed_after(first) == [v.A]
    assert allowed_after(first, v.A, v.A) == [v.A, v.END, v.TURN]


def test_a_key_with_another_grammar_is_another_text() -> None:
    masks = Masks(grammars())
    for grammar, token in (("start: /a/", v.A), ("start: /b/", v.B), ("start: /a/", v.A)):
        mask = masks.allowed(1, grammar, ids())
        assert mask is not None
        assert np.flatnonzero(mask).tolist() == [token]


def test_grammars_are_shared_between_threads() -> None:
    several, results = grammars(capacity=2), list[list[int] | None]()

    def ask() -> None:
        for letters in ("a", "b", "ab") * 20:
            results.append(allowed_after(several.matcher(f"start: /({letters})+/")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == sorted(map(str, [[v.A], [v.B], [v.A, v.AB]] * 80))
