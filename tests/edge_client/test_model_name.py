"""Names of models lead to one URL and one place, and to no other place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from edge_client.model_name import is_remote, parse_name


@pytest.mark.parametrize(
    ("text", "url", "place"),
    [
        ("hf://o/r/f.gguf", "https://huggingface.co/o/r/resolve/main/f.gguf", "o/r/main/f.gguf"),
        ("hf://o/r/q 8/f.gguf@v1", "https://huggingface.co/o/r/resolve/v1/q%208/f.gguf", "o/r/v1/q 8/f.gguf"),
        (
            "hf://o/r/f.gguf@refs/pr/1",
            "https://huggingface.co/o/r/resolve/refs%2Fpr%2F1/f.gguf",
            "o/r/refs%2Fpr%2F1/f.gguf",
        ),
        ("https://h/a/b.gguf", "https://h/a/b.gguf", "url/h/a/b.gguf"),
        ("https://h:8443/b%20c.gguf", "https://h:8443/b%20c.gguf", "url/h-8443/b c.gguf"),
    ],
)
def test_a_name_is_taken_apart(text: str, url: str, place: str) -> None:
    name = parse_name(text)
    assert (name.text, name.url, str(name.place)) == (text, url, place)


def test_a_mirror_serves_the_same_names_to_the_same_places() -> None:
    name = parse_name("hf://o/r/f.gguf", "https://mirror.example/hub/")
    assert name.url == "https://mirror.example/hub/o/r/resolve/main/f.gguf"
    assert name.place == parse_name("hf://o/r/f.gguf").place


def test_queries_tell_files_apart() -> None:
    first, second = (parse_name(f"https://h/f.gguf?id={number}").place for number in (1, 2))
    assert first != second
    assert first.suffix == ".gguf"


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://o", "hf://o/r", "hf://o/r/", "hf:///r/f", "hf://o/r/../f", "hf://o/r/f@", "hf://o/r/a\\b",
     "hf://../r/f", "https://", "https://h", "https://h/", "https://h/a/../b", "https://h/%2e%2e/b",
     "https://h/a%2F..%2Fb", "https://h:x/f", "https://me:secret@h/f"],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_name(text)
    assert "secret" not in str(caught.value)


@given(st.sampled_from(("hf://", "https://", "http://")), st.text(max_size=40))
def test_no_name_leads_out_of_the_store(prefix: str, rest: str) -> None:
    try:
        place = parse_name(prefix + rest).place
    except UserError:
        return
    assert not place.is_absolute()
    assert ".." not in place.parts
    assert len(place.parts) >= 3


def test_files_of_this_machine_are_told_apart() -> None:
    assert [is_remote(text) for text in ("hf://x", "https://x", "http://x", "x.gguf", "/x", "~/hf://")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
