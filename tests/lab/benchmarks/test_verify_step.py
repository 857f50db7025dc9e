"""The benchmark of the packed step measures all its shapes."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]


def test_every_shape_is_measured_on_both_sides() -> None:
    from cloud_verifier.engine.model.transformers_adapter import TargetModel
    from lab.benchmarks.plans import SAMPLINGS
    from lab.benchmarks.verify_step import ROWS, StepSettings, measure
    from tests.cloud_verifier.engine.tiny import plain_model

    plain = plain_model("llama")
    plain.set_attn_implementation("sdpa")
    results = measure(
        plain, TargetModel("tiny", plain_model("llama")), StepSettings("none", context=20, repeats=1)
    )
    names = [name for name, sampling in SAMPLINGS.items() if not sampling.grammar]
    assert [(one.shape, one.num_rows, one.sampling) for one in results] == [
        (shape, rows, name) for rows in ROWS for shape in ("chain", "tree") for name in names
    ]
    assert all(one.ratio == one.packed_time / one.plain_time > 0 for one in results)


def test_every_shape_is_measured_on_both_engines() -> None:
    from lab.benchmarks.verify_step import StepSettings, measure_exact
    from lab.demo_models import TARGET_DIR

    results = measure_exact(StepSettings(str(TARGET_DIR), context=4, repeats=1), [(1, 1), (2, 3)])
    assert [one.shape for one in results] == ["1 x 1", "2 x 3"]
    assert all(one.ratio > 0 < one.least_ratio for one in results)
