"""Lets the target look at a draft twice in one step, for the acceptance rule `reflective`.

Reflective verification (arXiv 2505.18629): below the draft stand a reflective prompt, the end of the text
before the draft once more, and a copy of the draft. The rows of the copy tell what the target thinks of the
same tokens after the prompt, and the rule fuses both. Here they are further rows of the session's tree,
below its chain of first children. Their KV is written to slots that this engine keeps back, and is forgotten.

Steps without such a session pass as they are. A session gets no second look in a step without a draft, in a
step that reads its prompt, at the end of the target's positions, with a grammar or penalties (they would read
the added rows as text), and where the step has used up the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cloud_verifier.core.engine_protocol import IntArray, Offer, StepItem, StepPlan, StepResult, TargetEngine
from cloud_verifier.engine.around import EngineAround
from cloud_verifier.engine.torch_engine import TorchEngine
from common.acceptance import AcceptanceRule
from common.errors import UserError

PROMPT = "\nLet me check the last lines and write them again without mistakes:\n"
"""Reflective prompt. The authors' own is not published."""

TAIL = 16  # tokens before the draft that stand once more before its copy
SPARE_SLOTS = 1024  # enough for second looks of some twenty sessions in a step


class ReflectiveEngine(EngineAround):
    """Adds second looks to the steps of the engine inside.

    Args: engine; prompt, the reflective prompt's tokens. Raises `UserError` if the engine has too few slots,
    or layers that keep a state, which would need a place for each row.
    """

    def __init__(self, engine: TargetEngine, prompt: Sequence[int]) -> None:
        super().__init__(engine)
        if engine.info.recurrent or engine.info.num_slots <= 2 * SPARE_SLOTS:
            raise UserError(
                f"--allow-rule reflective needs more than {2 * SPARE_SLOTS} KV slots and a target without "
                "layers that keep a state; raise --slots, or leave the rule out"
            )
        self.info = replace(engine.info, num_slots=engine.info.num_slots - SPARE_SLOTS)
        self._prompt = list(prompt)

    def evaluate(self, plan: StepPlan) -> StepResult:
        items, free = list[StepItem](), self.info.num_slots
        for item in plan.items:
            items.append(self._with_second_look(item, free))
            free += len(items[-1].tokens) - len(item.tokens)
        result = self._engine.evaluate(StepPlan(tuple(items)))
        counts = [len(item.outputs) for item in plan.items]
        return replace(
            result,
            choices=tuple(each[:count] for each, count in zip(result.choices, counts, strict=True)),
            margins=tuple(each[:count] for each, count in zip(result.margins, counts, strict=True)),
        )

    def _with_second_look(self, item: StepItem, free: int) -> StepItem:
        """Return the item with its second look in the slots from `free` on; the item itself without one."""
        ask = item.ask
        if ask is None or ask.acceptance.rule is not AcceptanceRule.REFLECTIVE or item.sampling.reads_text:
            return item
        chain = _chain(item, [offer.tokens for offer in ask.offers])
        if len(chain) < 2 or item.prompt is None or item.generated is None:
            return item
        tail = np.concatenate((item.prompt, item.generated))[-TAIL:].tolist()
        before = [*self._prompt, *tail]
        added = np.array([*before, *item.tokens[chain]], np.int32)
        start, num_rows = int(item.positions[chain[-1]]) + 1, len(item.tokens)
        if (
            free + len(added) > self.info.num_slots + SPARE_SLOTS
            or start + len(added) > self.info.max_positions
        ):
            return item
        below = _count(num_rows, len(added))
        copies = below[len(before) :]
        num_outputs = len(item.outputs)
        places = item.outputs.searchsorted(chain).tolist()
        return replace(
            item,
            tokens=np.concatenate((item.tokens, added)),
            positions=np.concatenate((item.positions, _count(start, len(added)))),
            parents=np.concatenate((item.parents, [np.int32(chain[-1])], below[:-1])),
            slots=np.concatenate((item.slots, _count(free, len(added)))),
            outputs=np.concatenate((item.outputs, copies)),
            ask=replace(
                ask,
                offers=(*ask.offers, *(Offer(),) * len(copies)),
                copies={place: num_outputs + turn for turn, place in enumerate(places)},
            ),
        )


def _chain(item: StepItem, offered: Sequence[Sequence[int]]) -> list[int]:
    """Return the rows of the tip and of the chain of its evaluated first children; empty if the step reads
    the prompt."""
    outputs = item.outputs.tolist()
    if not outputs or outputs[0] != 0:
        return []
    children = {
        (int(parent), int(token)): row
        for row, (parent, token) in enumerate(zip(item.parents, item.tokens, strict=True))
    }
    chain = [0]
    while (tokens := offered[outputs.index(chain[-1])]) and (chain[-1], tokens[0]) in children:
        chain.append(children[chain[-1], tokens[0]])
    return chain


def _count(start: int, number: int) -> IntArray:
    return np.arange(start, start + number, dtype=np.int32)


def reflective_engine(engine: TorchEngine) -> ReflectiveEngine:
    """Return the engine with second looks, whose prompt is `PROMPT` in the target's tokens."""
    tokenize = engine.model.tokenize
    special = len(tokenize(""))  # tokens before a prompt
    return ReflectiveEngine(engine, tokenize(PROMPT)[special:])
