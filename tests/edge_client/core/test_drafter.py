"""Law of a drafter's beginning: text that is there already counts as text, for every drafter alike."""

from __future__ import annotations

from common.sampling import SamplingParams
from edge_client.core.drafter import DraftRow, Expansion, Reroot, begin
from tests.worlds.models import TinyDrafter

PENALISED = SamplingParams(presence_penalty=2.0, repetition_penalty=1.5, frequency_penalty=1.0)
PROMPT, TEXT = (1, 2, 3), (4, 5, 4, 6)


def after_tip(generated: int) -> Expansion:
    drafter = TinyDrafter(blend=0.0)
    begin(drafter, PROMPT + TEXT, 9, PENALISED, generated=generated)
    (found,) = drafter.expand([DraftRow(9, None, TEXT[-1], 6)])
    return found


def test_text_that_is_there_is_penalised_as_text_that_came() -> None:
    grown = TinyDrafter(blend=0.0)
    begin(grown, PROMPT, 1, PENALISED)
    grown.reroot(Reroot(tuple(zip((5, 6, 7, 9), TEXT, strict=True)), ()))
    assert grown.expand([DraftRow(9, None, TEXT[-1], 6)]) == [after_tip(generated=4)]


def test_the_same_tokens_as_a_prompt_are_another_matter() -> None:
    assert after_tip(generated=0).scores != after_tip(generated=4).scores
