"""A step travels between ranks as integers, unchanged; garbage is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_verifier.core.target import StepItem
from cloud_verifier.engine.step_frames import (
    MAX_LENGTH,
    Kind,
    decode_items,
    encode_items,
    head_of,
    read_head,
)
from common.errors import LocalError
from common.sampling import SamplingParams

ARRAYS = ("prefix_slots", "tokens", "positions", "parents", "slots", "outputs")
numbers = st.integers(-1, 2**31 - 1)


@st.composite
def items(draw: Any) -> StepItem:
    """Any integers: what they mean is checked elsewhere."""
    prefix, rows, outputs = draw(st.tuples(*[st.integers(0, 6)] * 3))
    lengths = {"prefix_slots": prefix, "outputs": outputs}
    arrays: dict[str, Any] = {
        name: np.array(draw(st.lists(numbers, min_size=count, max_size=count)), dtype=np.int32)
        for name, count in ((name, lengths.get(name, rows)) for name in ARRAYS)
    }
    return StepItem(session=draw(st.integers(0, 2**31 - 1)), sampling=SamplingParams(seed=9), **arrays)


@given(st.lists(items(), max_size=4))
def test_items_arrive_as_they_were_without_their_sampling(sent: list[StepItem]) -> None:
    line = encode_items(sent)
    assert line.dtype == np.int32
    received = decode_items(line).items
    assert len(received) == len(sent)
    for before, after in zip(sent, received, strict=True):
        assert after.session == before.session
        assert after.sampling == SamplingParams()
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


@given(st.lists(items(), min_size=1, max_size=3), st.data())
def test_a_line_cut_short_or_too_long_is_refused(sent: list[StepItem], data: Any) -> None:
    line = encode_items(sent)
    cut = line[: data.draw(st.integers(1, len(line) - 1))]
    with pytest.raises(LocalError, match="ends before"):
        decode_items(cut)
    with pytest.raises(LocalError, match="goes on after"):
        decode_items(np.append(line, np.int32(0)))


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(LocalError, match="ends before"):
        decode_items(np.array([1, 0, 5, -3, 0], dtype=np.int32))


@pytest.mark.parametrize("kind", Kind)
def test_a_head_is_read_as_it_was_written(kind: Kind) -> None:
    assert read_head(head_of(kind, 17).tolist()) == (kind, 17)


@pytest.mark.parametrize("head", [(0, 0), (4, 0), (1, -1), (1, MAX_LENGTH + 1)])
def test_what_is_no_head_is_refused(head: tuple[int, int]) -> None:
    with pytest.raises(LocalError, match="which is none"):
        read_head(head)
