"""Every family is what docs/models.md says of it, by the probe; with real windows where they are cheap."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cloud_verifier.engine.families import Family

pytestmark = pytest.mark.torch

DOCUMENT = Path(__file__).parents[3] / "docs" / "models.md"

DEAR = {"Gemma 2", "OLMo 3", "StarCoder 2", "Cohere Command R7B", "EXAONE 4"}
"""Windows of 4,096 positions, whose plain attention takes seconds; that of Mistral is probed as it is."""

FLOAT16 = {"Llama 3", "Gemma 2", "gpt-oss", "DeepSeek V2"}
"""Probed in float16, too; `forerun models` probes all."""


def families() -> list[Family]:
    from cloud_verifier.engine.families import REFUSED_FAMILIES, SERVED_FAMILIES

    return [*SERVED_FAMILIES, *REFUSED_FAMILIES]


def names() -> list[str]:
    """By name, so that the file can be collected without torch."""
    return [family.name for family in families()]


def family_named(name: str) -> Family:
    (family,) = (family for family in families() if family.name == name)
    return family


def documented() -> dict[str, tuple[str, ...]]:
    from forerun.models_table import rows_of

    text = DOCUMENT.read_text(encoding="utf-8")
    return {row[0]: row for row in rows_of(text[text.index("<!-- begin") : text.index("<!-- end")])}


def without_numbers(cells: tuple[str, ...]) -> tuple[str, ...]:
    """DiffLlama's reason holds what was measured."""
    return tuple(re.sub(r"\d[\d.e-]*", "#", cell) for cell in cells)


@pytest.mark.parametrize("name", names())
def test_a_family_is_what_the_page_says(name: str) -> None:
    from cloud_verifier.engine.conformance import examine
    from forerun.models_table import NUM_FIXED, refused_row, served_row

    precisions = ["float32", "bfloat16", *(["float16"] if name in FLOAT16 else [])]
    finding = examine(family_named(name), precisions, real_windows=name not in DEAR)
    row = documented()[name]
    if not finding.served:
        assert without_numbers(refused_row(finding)) == without_numbers(row)
        return
    assert served_row(finding)[:NUM_FIXED] == row[:NUM_FIXED]
    assert finding.worst is not None
    assert finding.worst < 1e-4


def test_the_page_lists_every_family_and_no_other() -> None:
    assert list(documented()) == names()


def test_the_measured_cells_of_the_page_are_within_their_bounds() -> None:
    from cloud_verifier.engine.families import SERVED_FAMILIES
    from cloud_verifier.engine.probe import LESS_EXACT, TOLERANCE

    rows = documented()
    for family in SERVED_FAMILIES:
        worst, *exactness = (float(cell) for cell in rows[family.name][4:])
        assert 0.0 < worst < TOLERANCE
        assert all(0.0 < one < LESS_EXACT for one in exactness)


def test_served_and_refused_families_are_those_of_the_table() -> None:
    """More than twenty families, no name twice, and each list holds what its name says."""
    from cloud_verifier.engine.families import REFUSED_FAMILIES, SERVED_FAMILIES

    rows = documented()
    assert len(SERVED_FAMILIES) >= 20
    assert len(set(names())) == len(names())
    assert all(len(rows[family.name]) == 7 for family in SERVED_FAMILIES)
    assert all(len(rows[family.name]) == 4 for family in REFUSED_FAMILIES)


def test_the_random_models_are_the_same_each_time() -> None:
    import torch

    from cloud_verifier.engine.random_target import random_target

    family = family_named("Qwen 2, Qwen 2.5")
    state = torch.random.get_rng_state()
    logits = []
    for _ in range(2):
        model = random_target(family.name, family.model_type, family.settings, dtype="float32")
        with model.plain(), torch.inference_mode():
            logits.append(model.plain_logits([5, 6, 7], 3))
    assert torch.equal(*logits)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_biases_and_norms_are_random_too() -> None:
    """transformers makes them zeros and ones, and a path that lost one would not show."""
    from cloud_verifier.engine.random_target import random_target

    family = family_named("Qwen 2, Qwen 2.5")
    model = random_target(family.name, family.model_type, family.settings, dtype="float32")
    thin = [parameter for parameter in model._model.parameters() if parameter.ndim == 1]
    assert len(thin) > 8
    assert all(len(set(parameter.tolist())) > 1 for parameter in thin)
