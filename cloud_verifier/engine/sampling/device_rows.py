"""Changes rows of logits on their device by grammar, bias and penalties; `common.choice` is the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cloud_verifier.engine.sampling.host_choice import ChoiceRow, RowGroup, row_groups
from common import choice as reference

ENTRIES = 2**22
"""Logits that penalties change at a time: some 64 bytes each for a moment."""


def check_best(logits: Tensor) -> None:
    """`common.choice.check_best` of every row, for one transfer of one byte if all is well."""
    best = logits.amax(dim=1)
    if not bool(torch.isfinite(best).all()):
        reference.check_best(float(best[~torch.isfinite(best)][0]))


def masked_rows(logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Set logits to -inf where a row's grammar forbids the token: a copy, or the input."""
    masks = {index: row.allowed for index, row in enumerate(rows) if row.allowed is not None}
    if not masks:
        return logits
    for allowed in masks.values():
        reference.check_allowed(allowed, logits.shape[1])
    forbidden = torch.from_numpy(~np.stack(list(masks.values()))).to(logits.device)
    masked = logits.clone(memory_format=torch.contiguous_format)
    where = torch.tensor(list(masks), device=logits.device)
    masked[where] = masked[where].masked_fill_(forbidden, -torch.inf)
    check_best(masked)
    return masked


def adjusted_rows(logits: Tensor, rows: Sequence[ChoiceRow]) -> Tensor:
    """Return logits after grammar, bias and penalties: a changed copy, or the input."""
    logits, groups = masked_rows(logits, rows), row_groups(rows, logits.shape[1])
    if not groups:
        return logits
    adjusted = logits.clone(memory_format=torch.contiguous_format)
    _write_shared(logits, adjusted, groups)
    _write_own(logits, adjusted, groups)
    check_best(adjusted)
    return adjusted


def _write_shared(logits: Tensor, adjusted: Tensor, groups: Sequence[RowGroup]) -> None:
    """Change each row by its group's history, `ENTRIES` logits or a row at a time."""
    tables = [group.history.changes for group in groups]
    sizes = np.array([table.tokens.size for table in tables])
    repeats = [len(group.rows) for group in groups]
    rows = np.concatenate([group.rows for group in groups])
    starts, counts = (sizes.cumsum() - sizes).repeat(repeats), sizes.repeat(repeats)
    tokens = torch.from_numpy(np.concatenate([table.tokens for table in tables])).to(logits.device)
    numbers = _numbers(tables).to(logits.device)
    pieces = (counts.cumsum() - 1) // ENTRIES
    for piece in np.unique(pieces):
        part = pieces == piece
        spans = np.stack((rows[part], starts[part], counts[part]))
        total = int(spans[2].sum())
        on_device = torch.from_numpy(spans).to(logits.device)
        spread = on_device.repeat_interleave(on_device[2], dim=1, output_size=total)
        ends = on_device[2].cumsum(0).repeat_interleave(on_device[2], output_size=total)
        entry = torch.arange(total, device=logits.device) - (ends - spread[2]) + spread[1]
        _write(logits, adjusted, spread[0] * logits.shape[1] + tokens[entry], numbers[:, entry])


def _write_own(logits: Tensor, adjusted: Tensor, groups: Sequence[RowGroup]) -> None:
    """Change each row along its own path."""
    rows = np.concatenate([np.array(group.rows)[group.owners] for group in groups])
    tokens = np.concatenate([group.own.tokens for group in groups])
    where = torch.from_numpy(rows * logits.shape[1] + tokens).to(logits.device)
    _write(logits, adjusted, where, _numbers([group.own for group in groups]).to(logits.device))


def _numbers(tables: Sequence[reference.Adjustments]) -> Tensor:
    """Bias, factor and minus of all entries, float64 [3, N]."""
    return torch.from_numpy(
        np.concatenate([(table.bias, table.factor, table.minus) for table in tables], axis=1)
    )


def _write(logits: Tensor, adjusted: Tensor, where: Tensor, numbers: Tensor) -> None:
    """`common.choice.adjusted_values` of the flat places `where` [N], written to `adjusted`."""
    bias, factor, minus = numbers
    values = logits.reshape(-1)[where].double() + bias
    values = torch.where(values > 0, values / factor, values * factor) - minus
    adjusted.view(-1)[where] = values.clamp_(max=reference.FLOAT32_MAX).float()
