"""The origins of a stream count each token once, also of a text that its reader held back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edge_client.api.response import _ours
from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.formats.message import ContentAdded
from edge_client.texts.events import TextAdded

SPEC: Any = SimpleNamespace(origins=True)
SPANS = st.lists(st.sampled_from(["", "a", "bc"]), min_size=1, max_size=12)


@given(SPANS, st.data())
def test_origins_count_each_token_once_however_the_text_was_cut_and_held(texts: list[str], data: Any) -> None:
    spans = [TextSpan(text, TokenOrigin.SERVER) for text in texts]
    fed, shown, told = 0, 0, list[list[Any]]()
    while fed < len(spans):
        cut = data.draw(st.integers(fed + 1, len(spans)))
        released = data.draw(st.integers(shown, cut)) if cut < len(spans) else cut
        added = [ContentAdded(tuple(spans[shown:released]))] if released > shown else []
        runs = _ours(SPEC, TextAdded(tuple(spans[fed:cut])), added)["origins"]
        assert sum(count for _, _, count in runs) == cut - fed
        told += runs
        fed, shown = cut, released
    assert "".join(text for text, _, _ in told) == "".join(texts)
