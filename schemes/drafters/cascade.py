"""A smaller draft model in front of the draft model (CS Drafting, arXiv 2312.11462, its vertical cascade).

The small model writes a chain of tokens below a row of a draft step, and the draft model evaluates rows and
chain in one batch. Where both agree under the shared noise, the next draft steps are answered at once. The
session notices only that its draft model is faster, so nothing else depends on the small model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from common.errors import ForerunError, UserError
from common.llama.runtime import LlamaRuntime
from edge_client.core.effects import DraftRow, Reroot, StartDrafter
from edge_client.draft.batch_plan import DraftNode
from edge_client.draft.group import DraftGroup, MemberDrafter

CHAIN = 4
"""Tokens of a chain. With an agreement of 0.75 the fifth is right once in four times."""


class CascadeGroup(DraftGroup):
    """Schedules draft steps as `DraftGroup`, with chains of the model `other`, which stays the caller's.

    The small model reads a prompt at once, after the draft model has read it in pieces. Both runtimes have
    the same tokens. Raises `UserError` for a recurrent draft model, which evaluates a chain row by row.
    """

    def __init__(self, runtime: LlamaRuntime, size: int, other: LlamaRuntime) -> None:
        super().__init__(runtime, size)
        if runtime.is_recurrent:
            raise UserError(
                f"{runtime.path} is recurrent and evaluates a chain token by token, so a smaller draft saves "
                "nothing; leave draft.small empty, or choose a draft model without a recurrent state"
            )
        self._small = DraftGroup(other, size, num_candidates=1)
        self._draws = [False] * size
        self._num_asked = 0  # rows of chains

    def begin(self, index: int, start: StartDrafter) -> None:
        super().begin(index, start)
        self._draws[index] = start.plain > 0  # then the session draws its nodes, and no chain would meet them
        self._small.begin(index, start)

    def reroot(self, index: int, change: Reroot) -> None:
        super().reroot(index, change)
        self._small.reroot(index, change)

    def release(self, index: int) -> None:
        super().release(index)
        self._small.release(index)

    def ask(self, index: int, rows: Sequence[DraftRow]) -> None:
        super().ask(index, rows)
        member = self.members[index]
        room = self._runtime.max_rows - len(member.todo)
        if not member.todo or room < 1 or self._draws[index] or self._must_read(member):
            return
        end = member.todo[0]
        for node in member.todo:
            end = node if node.parent is end else end
        member.todo += member.session.foresee(end, self._chain(index, end)[:room])

    def _chain(self, index: int, end: DraftNode) -> list[int]:
        """Return the small model's tokens below `end`; none where it fails."""
        rows = [
            DraftRow(node.id, None if node.parent is None else node.parent.id, node.token, node.position)
            for node in reversed(list(end.path()))
        ]
        small, chain = MemberDrafter(self._small, index), list[int]()
        with contextlib.suppress(ForerunError):
            while len(chain) < CHAIN:
                tokens, last = small.expand(rows)[-1].tokens, rows[-1]
                if not tokens or tokens[0] >= self._runtime.num_vocab:  # one table may have more padding
                    break
                chain.append(tokens[0])
                self._num_asked += 1
                rows = [DraftRow(-self._num_asked, last.id, chain[-1], last.position + 1)]
        return chain
