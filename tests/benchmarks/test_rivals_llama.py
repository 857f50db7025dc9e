"""`benchmarks.rivals_llama`: the draft model guesses as from nothing, and no rival changes the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.rivals import Lookahead
from common.errors import UserError
from demo_models import DRAFT_GGUF
from tests.benchmarks.one_text import JOB, SETTING, TEXT, check_one_text

if TYPE_CHECKING:
    from benchmarks.rivals_llama import GgufDraft

pytestmark = pytest.mark.llama

MakeDraft = Callable[..., "GgufDraft"]


@pytest.fixture(name="draft_of")
def make_drafts() -> Iterator[MakeDraft]:
    """Drafts on the bundled file, each with a context of its own."""
    from benchmarks.rivals_llama import GgufDraft
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings

    with ExitStack() as stack:

        def draft_of(lookahead: Lookahead, n_ctx: int = 64) -> GgufDraft:
            settings = LlamaSettings(str(DRAFT_GGUF), n_ctx=n_ctx, threads=1)
            return GgufDraft(stack.enter_context(LlamaRuntime(settings)), lookahead)

        yield draft_of


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.intc)


def test_a_draft_with_history_guesses_as_one_without(draft_of: MakeDraft) -> None:
    used, longer = draft_of(Lookahead(4)), [*TEXT, 7, 8]
    for text in (TEXT, longer, TEXT[:2], [*TEXT[:3], 9], longer, longer):
        assert used(array(text)).tolist() == draft_of(Lookahead(4))(array(text)).tolist()


def test_a_guess_is_what_shorter_guesses_say_one_by_one(draft_of: MakeDraft) -> None:
    guess = draft_of(Lookahead(4))(array(TEXT)).tolist()
    one, text = draft_of(Lookahead(1)), list(TEXT)
    for _ in range(4):
        text += one(array(text)).tolist()
    assert text == [*TEXT, *guess]
    assert one.num_drafted == 4


def test_a_draft_stops_where_it_is_unsure(draft_of: MakeDraft) -> None:
    sure = draft_of(Lookahead(8))(array(TEXT)).tolist()
    unsure = draft_of(Lookahead(8, 0.5))(array(TEXT)).tolist()
    assert len(unsure) < 8
    assert unsure == sure[: len(unsure)]


def test_a_draft_ends_with_its_context(draft_of: MakeDraft) -> None:
    draft = draft_of(Lookahead(32), 256)
    room = draft._runtime.n_ctx
    assert len(draft(array([5] * (room - 3)))) == 3
    assert len(draft(array([5] * room))) == 0


def test_confidence_is_the_softmax_of_the_best() -> None:
    from benchmarks.rivals_llama import confidence

    logits = np.log(np.array([0.25, 0.5, 0.25], dtype=np.float32)) + 50
    assert confidence(logits) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 9, 3], [1, 2, 3], 1), ([4], [5], 0)],
)
def test_what_two_texts_share(one: list[int], other: list[int], length: int) -> None:
    from benchmarks.rivals_llama import common_prefix

    assert common_prefix(one, other) == length


@pytest.mark.torch
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_draft_changes_the_text(temperature: float) -> None:
    from benchmarks.rivals_llama import load_rivals

    with ExitStack() as stack:
        alone, *others = load_rivals(SETTING, stack)
        job = replace(JOB, temperature=temperature)
        assert alone.write(job)["tokens"] == alone.write(job)["tokens"]
        check_one_text(alone, others, job, "llama_cpp_draft", "llama_cpp_prompt_lookup")


def test_quantised_weights_are_refused_where_they_crash() -> None:
    from benchmarks.rivals_llama import refuse_crashing

    refuse_crashing("x.gguf", "7", "AVX2 = 1")
    refuse_crashing("x.gguf", "0", "AMX_INT8 = 1")
    with pytest.raises(UserError, match=r"x\.gguf is quantised"):
        refuse_crashing("x.gguf", "7", "AMX_INT8 = 1")


def test_another_target_must_bring_its_gguf(tmp_path: Path) -> None:
    from benchmarks.rivals_llama import load_rivals

    with ExitStack() as stack, pytest.raises(UserError, match="--target-gguf"):
        load_rivals(replace(SETTING, target=str(tmp_path)), stack)
