"""Text in the target's own words: it continues real prefixes, and greedily for most rows."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_rows_begin_with_windows_of_the_text_and_continue_greedily() -> None:
    import torch

    from demo_models.architecture import new_model
    from demo_models.sampling import PREFIX_TOKENS, continue_prefixes

    target = new_model(1, seed=0).eval()
    length = PREFIX_TOKENS + 6
    text = torch.arange(1000)
    rows = continue_prefixes(target, text, num_rows=4, length=length, seed=0).view(4, length)
    assert bool((rows[:, :PREFIX_TOKENS].diff(dim=1) == 1).all())
    with torch.no_grad():
        expected = target(rows[:3]).logits[:, PREFIX_TOKENS - 1 : -1].argmax(-1)
    assert torch.equal(rows[:3, PREFIX_TOKENS:], expected)


def test_the_same_seed_gives_the_same_text() -> None:
    import torch

    from demo_models.architecture import new_model
    from demo_models.sampling import continue_prefixes

    target = new_model(1, seed=0).eval()
    first, second = (continue_prefixes(target, torch.arange(500), 4, 70, seed=3) for _ in range(2))
    assert torch.equal(first, second)
