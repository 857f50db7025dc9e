"""Packed windows: every batch has the same number of tokens, and an epoch reads each window once."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_texts_are_packed_with_an_end_of_text_token_after_each() -> None:
    from demo_models import TARGET_DIR
    from demo_models.batches import pack
    from demo_models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(TARGET_DIR)
    expected = [*tokenizer.encode("import os\n").ids, 0, *tokenizer.encode("x").ids, 0]
    assert pack(tokenizer, ["import os\n", "x"]).tolist() == expected


@pytest.mark.parametrize("context", [512, 1024])
def test_a_batch_holds_windows_of_consecutive_tokens(context: int) -> None:
    import torch

    from demo_models.batches import TOKENS_PER_STEP, WindowStream

    batch = WindowStream(torch.arange(50_000), seed=0).next_batch(context)
    assert batch.shape == (TOKENS_PER_STEP // context, context + 1)
    assert bool((batch.diff(dim=1) == 1).all())


def test_an_epoch_reads_no_window_twice() -> None:
    import torch

    from demo_models.batches import WindowStream

    stream = WindowStream(torch.arange(512 * 17), seed=0)
    starts = torch.cat([stream.next_batch(512)[:, 0] for _ in range(2)])
    assert len(set(starts.tolist())) == 16


def test_the_same_seed_gives_the_same_windows() -> None:
    import torch

    from demo_models.batches import WindowStream

    first, second = (WindowStream(torch.arange(9000), seed=7) for _ in range(2))
    assert torch.equal(first.next_batch(512), second.next_batch(512))
