"""Cuts the rows of a step into llama_decodes, by what each number of rows costs and how it rounds.

llama.cpp has kernels for one row, for a few rows and for many. On a processor two rows together can take
three times as long as one, and eight as long as four. The kernels also round differently. So a text that
repeats itself bit for bit needs rows of one kind: its written tokens are evaluated in decodes small enough to
round as a lone row does, and prompts in decodes of the other kind (docs/determinism.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

PROMPT_UNIT = 4
"""A decode of prompt rows has a multiple of so many: repacked weights are multiplied by four rows at a time,
and what is left over by the kernel for one."""

PROMPT_LEAST = 8
"""Rows from which llama.cpp's tiled kernels take over (`ggml_tiled_min_batch`)."""

MOST_FILLED = 16
"""Most rows by which a decode is filled up, and forgotten afterwards."""


@dataclass(slots=True)
class DecodeShapes:
    """Says how many rows one llama_decode may have, and what that costs."""

    times: Sequence[tuple[int, float]] = ()  # rows, rising from 1, and measured seconds of one decode
    text_rows: int = 0  # most rows of written tokens in a decode; 0: any number, and prompts among them
    prompt_outputs: int = 1  # fewest rows with logits in a prompt's decode that has any
    _best: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """By the most rows of a decode, and by rows: seconds, and the size of the last decode."""

    @property
    def repeats(self) -> bool:
        """Whether a text's bits depend on its tokens alone."""
        return self.text_rows > 0

    def cut(self, num_rows: int, most: int) -> list[int]:
        """Return the sizes of the decodes, `most` rows each at most, that take least time together.

        They may have more rows than there are: four rows can be cheaper than three.
        """
        most = min(most, self.text_rows or most)
        if not self.times:
            return [min(most, num_rows - at) for at in range(0, num_rows, most)]
        best = self._best.setdefault(most, [(0.0, 0)])
        while len(best) <= num_rows:
            left = len(best)
            sizes = range(1, 1 + min(most, max(left, self.times[-1][0])))
            best.append(min((best[max(0, left - size)][0] + self.seconds(size), size) for size in sizes))
        chosen, left = list[int](), num_rows
        while left > 0:
            chosen.append(best[left][1])
            left -= chosen[-1]
        return chosen

    def num_outputs(self, num_wanted: int) -> int:
        """Return the rows with logits of a prompt's decode from which `num_wanted` are read.

        llama.cpp computes its last layers for these rows only, so their number chooses kernels, too.
        """
        if not num_wanted or self.prompt_outputs == 1:
            return num_wanted
        return max(self.prompt_outputs, -(-num_wanted // PROMPT_UNIT) * PROMPT_UNIT)

    def seconds(self, num_rows: int) -> float:
        """Return the seconds of one decode, between and beyond measured sizes by a straight line."""
        rows, times = zip(*self.times, strict=True)
        if num_rows <= rows[-1] or len(rows) == 1:
            return float(np.interp(num_rows, rows, times) * max(1.0, num_rows / rows[-1]))
        slope = max(0.0, (times[-1] - times[-2]) / (rows[-1] - rows[-2]))
        return float(times[-1] + slope * (num_rows - rows[-1]))

    def step_seconds(self, num_rows: int, most: int) -> float:
        """Return the seconds of a step of so many rows, cut as `cut` does."""
        return sum(map(self.seconds, self.cut(num_rows, most)))


def prompt_cuts(num_rows: int, most: int) -> list[int]:
    """Return the sizes of the decodes of `num_rows` prompt rows; the last is filled up with other rows."""
    left = max(PROMPT_LEAST, -(-num_rows // PROMPT_UNIT) * PROMPT_UNIT)
    most -= most % PROMPT_UNIT
    sizes = list[int]()
    while left > most:
        sizes.append(most if left - most >= PROMPT_LEAST else most - PROMPT_LEAST)
        left -= sizes[-1]
    return [*sizes, left]
