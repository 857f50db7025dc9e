"""Laws of the device alone: its text is the draft model's own, and it ends where it should."""

from collections.abc import Sequence

import pytest

from common.errors import CapacityError, LocalError
from common.messages import FinishReason
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Expansion
from edge_client.texts.alone import AloneRun
from tests import wording
from tests.support.drafter_thread import DrafterThread
from tests.worlds.models import TinyDrafter, target_alone

PROMPT = (1, 2, 3)
EOS = (0,)


async def text_of(drafter: TinyDrafter, sampling: SamplingParams) -> tuple[tuple[int, ...], AloneRun]:
    with DrafterThread(drafter) as drafts:
        run = AloneRun(drafts, PROMPT, sampling, EOS)
        return tuple([token async for shown in run.shown() for token in shown.tokens]), run


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_the_text_is_what_the_draft_model_writes_alone(temperature: float) -> None:
    sampling = SamplingParams(
        temperature=temperature, seed=4, max_tokens=60, ignore_eos=True, frequency_penalty=0.5
    )
    same_as_target, _ = await text_of(TinyDrafter(blend=0.0), sampling)
    assert same_as_target == target_alone(PROMPT, sampling, EOS)
    of_another_model, generation = await text_of(TinyDrafter(blend=1.0), sampling)
    assert of_another_model == target_alone(PROMPT, sampling, EOS, salt=99) != same_as_target
    assert generation.reason is FinishReason.LENGTH
    stats = generation.stats
    assert (stats.committed, stats.draft_steps, stats.drafted) == (0, 60, 60)
    assert (stats.target_steps, stats.evaluated, stats.proposed) == (0, 0, 0)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=300, temperature=1.0, seed=2),
        SamplingParams(max_tokens=300, temperature=1.0, seed=2, ignore_eos=True, stop_token_ids=(4,)),
    ],
)
async def test_it_ends_after_a_stop_token(sampling: SamplingParams) -> None:
    text, generation = await text_of(TinyDrafter(blend=0.0), sampling)
    assert text == target_alone(PROMPT, sampling, EOS)
    assert text[-1] == (4 if sampling.stop_token_ids else 0)
    assert generation.reason is FinishReason.STOP


async def test_a_drafter_that_fails_ends_it_with_the_failure() -> None:
    class Full(TinyDrafter):
        def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
            if rows[0].position >= 5:
                raise CapacityError("no room")
            return super().expand(rows)

    with wording.raises(CapacityError):
        await text_of(Full(), SamplingParams(max_tokens=10, ignore_eos=True))
    with wording.raises(LocalError):
        await text_of(TinyDrafter(mute_after=2), SamplingParams(max_tokens=10, ignore_eos=True))
