"""KV lands in its slots, in tensors shaped by the first call."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch


def test_rows_lie_in_their_slots_and_others_stay() -> None:
    import torch

    from cloud_verifier.engine.kv import KVStore

    store = KVStore(5)
    key, value = torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 6)  # values deeper than keys, as in DeepSeek
    kv = store.write(7, torch.tensor([4, 0, 2]), key, value)
    assert kv.keys.shape == (5, 2, 4)
    assert kv.values.shape == (5, 2, 6)
    assert torch.equal(kv.keys[[4, 0, 2]], key[0].transpose(0, 1))
    assert torch.equal(kv.values[[4, 0, 2]], value[0].transpose(0, 1))
    assert not kv.rows[[1, 3]].any()
    before = kv.keys[4].clone()
    assert store.write(7, torch.tensor([1]), key[:, :, :1], value[:, :, :1]) is kv
    assert torch.equal(kv.keys[4], before)


def test_each_layer_has_its_own_shape() -> None:
    import torch

    from cloud_verifier.engine.kv import KVStore

    store = KVStore(3)
    assert (store.num_layers, store.num_bytes) == (0, 0)
    store.write(0, torch.tensor([0]), torch.rand(1, 2, 1, 4), torch.rand(1, 2, 1, 4))
    half = torch.rand(1, 1, 1, 8, dtype=torch.bfloat16)
    store.write(1, torch.tensor([0]), half, half)
    assert store.num_layers == 2
    assert store.num_bytes == 3 * (2 * 8 * 4 + 16 * 2)
