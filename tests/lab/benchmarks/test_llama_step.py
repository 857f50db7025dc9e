"""The benchmark of GGUF targets measures all its parts."""

from __future__ import annotations

import pytest

from forerun.demo_pair import DRAFT_GGUF

pytestmark = [pytest.mark.llama]


def test_every_part_is_measured() -> None:
    from lab.benchmarks.llama_step import (
        RATES,
        SHAPES,
        LlamaStepSettings,
        measure_price,
        measure_rates,
        measure_steps,
    )
    from lab.benchmarks.plans import SAMPLINGS

    settings = LlamaStepSettings(str(DRAFT_GGUF), context=8, repeats=1, tokens=3)
    steps = measure_steps(settings)
    assert [(each.shape, each.sampling) for each in steps] == [
        (f"{sessions} x {rows}", name) for sessions, rows in SHAPES for name in SAMPLINGS
    ]
    assert all(each.ratio == each.packed_time / each.plain_time > 0 for each in steps)
    assert [row["sessions"] for row in measure_rates(settings)] == list(RATES)
    found = measure_price(settings)
    assert [(row["context"], row["rows"]) for row in found] == [(256, 1), (256, 4)]
    assert all(row["least_ratio"] > 0 for row in found)
