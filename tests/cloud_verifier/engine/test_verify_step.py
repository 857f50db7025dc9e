"""The benchmark of the packed step measures all its shapes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_every_shape_is_measured_on_both_sides() -> None:
    from benchmarks.verify_step import ROWS, Settings, measure
    from tests.cloud_verifier.engine.tiny import plain_model

    plain = plain_model("llama")
    plain.set_attn_implementation("sdpa")
    results = measure(plain, plain_model("llama"), Settings("none", context=20, repeats=1))
    assert [(one.shape, one.num_rows) for one in results] == [
        (shape, rows) for rows in ROWS for shape in ("chain", "tree")
    ]
    assert all(one.ratio == one.packed_time / one.plain_time > 0 for one in results)
