"""The benchmark of the deterministic step measures all its shapes on both engines."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_every_shape_is_measured_on_both_engines() -> None:
    import torch

    from benchmarks.exact_step import Settings, measure

    shapes = [(1, 1), (2, 3)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        results = measure(Settings(context=4, repeats=1), shapes)
    finally:
        torch.set_num_threads(before)
    assert [(one.sessions, one.rows) for one in results] == shapes
    assert all(one.ratio == one.exact_time / one.default_time > 0 for one in results)
