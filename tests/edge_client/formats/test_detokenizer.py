"""Tokens become text: whole characters, nothing of a stop string, nothing lost that is none."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.formats.detokenizer import Detokenizer, TextDecoder, TextSpan, TokenOrigin


class Bytes:
    """`Words` whose tokens are bytes."""

    num_vocab = 256
    eos_ids = (0,)
    begin_ids = ()
    control_texts = ()

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        return bytes((token,))


WORDS = Bytes()


def spell(speller: Detokenizer, text: str) -> str:
    """Feed until it stops; what came out, the rest included."""
    out = list[TextSpan]()
    for token in text.encode():
        out += speller.feed(token, TokenOrigin.SERVER)
        if speller.stopped_by is not None:
            return "".join(each.text for each in out)
    return "".join(each.text for each in (*out, *speller.finish()))


def test_bytes_that_never_became_a_character_are_shown_as_such() -> None:
    decoder = TextDecoder(WORDS)
    assert [decoder.feed((token,)) for token in "é€".encode()] == ["", "é", "", "", "€"]
    speller = Detokenizer(WORDS, ends=(0,))
    assert speller.feed(0, TokenOrigin.SERVER) == [TextSpan("", TokenOrigin.SERVER, token=0)]
    assert [each.text for each in speller.feed(0xC3, TokenOrigin.DRAFTED)] == [""]
    assert speller.finish() == [TextSpan("�", TokenOrigin.SERVER)]


@pytest.mark.parametrize(
    ("text", "stops", "shown", "by"),
    [
        ("hello world", ["wor"], "hello ", "wor"),
        ("aaab", ["aab"], "a", "aab"),
        ("ababac", ["abac"], "ab", "abac"),
        ("abcd", ["cd", "bc"], "a", "bc"),
        ("abc", ["bc", "abc"], "", "abc"),
        ("naïve €5", ["€"], "naïve ", "€"),
        ("\n\nx", ["\n\n"], "", "\n\n"),
    ],
)
def test_a_text_ends_before_its_first_stop_string(
    text: str, stops: list[str], shown: str, by: str | None
) -> None:
    speller = Detokenizer(WORDS, stops=stops)
    assert spell(speller, text) == shown
    assert speller.stopped_by == by


def test_what_may_begin_a_stop_string_waits_and_goes_on_with_its_tokens() -> None:
    speller = Detokenizer(WORDS, stops=["abc"])
    assert speller.feed(ord("a"), TokenOrigin.DRAFTED) == []
    assert speller.feed(ord("b"), TokenOrigin.SERVER) == []
    released = speller.feed(ord("x"), TokenOrigin.DEVICE)
    assert [(each.text, each.origin) for each in released] == [
        ("a", TokenOrigin.DRAFTED),
        ("b", TokenOrigin.SERVER),
        ("x", TokenOrigin.DEVICE),
    ]


@given(st.text("ab", max_size=40), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_the_text_is_that_before_the_earliest_stop_whatever_the_stops(text: str, stops: list[str]) -> None:
    """As a search over the whole text finds it: the stop string that is complete first ends the text."""
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if ends:
        whole = text[: ends[0]]
        expected = whole[: min(whole.find(stop) for stop in stops if stop in whole)]
    else:
        expected = text
    assert spell(Detokenizer(WORDS, stops=stops), text) == expected


def test_what_is_held_back_costs_linear_time() -> None:
    """Tokens without text behind the beginning of a stop string, and a text that begins all of 16."""
    many = [
        Detokenizer(WORDS, (0,), ["<x"]),
        Detokenizer(WORDS, (), ["a" * 255 + chr(98 + n) for n in range(16)]),
    ]
    begun = time.thread_time()
    shown = many[0].feed(ord("<"), TokenOrigin.SERVER)
    for _ in range(40_000):
        shown += many[0].feed(0, TokenOrigin.SERVER)
        many[1].feed(ord("a"), TokenOrigin.SERVER)
    assert time.thread_time() - begun < 5
    assert shown == []
    assert len(many[0].finish()) == 40_001
