"""A mask is trained in the place where the edge evaluates it, and its row is taught what follows there."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from common.errors import UserError
from common.llama.model import LlamaModel, LlamaSettings
from edge_client.draft.shared_model import PARALLEL
from forerun.cli import main
from forerun.demo_pair import DRAFT_GGUF
from tests import wording
from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf
from training.draft_weights import DraftWeights
from training.lessons import Lesson
from training.losses import coupled_acceptance, forward_kl
from training.parallel import MaskedTexts, ParallelDraft, choose_masks

pytestmark = [pytest.mark.torch, pytest.mark.llama]

MASKS = (125, 126, 178)
TEXTS = ([70, 71, 72, 73, 74, 75], [80, 81, 82, 83])
ANCHORS = ([(2, 1), (4, 1), (2, 2), (2, 3)], [(0, 1), (0, 2)])


@pytest.fixture(scope="module")
def draft() -> DraftWeights:
    return DraftWeights(DRAFT_GGUF)


def lesson_of(text: list[int], first: int, best: int = 90) -> Lesson:
    """A text whose row r holds the token `best` + r alone."""
    rows = len(text) - first
    logprobs = np.full((rows, 1), -1e-6, np.float32)
    return Lesson(
        np.array(text, np.int32), first, np.arange(best, best + rows, dtype=np.int32)[:, None], logprobs
    )


@torch.inference_mode()
def test_a_mask_s_row_is_that_of_the_text_and_masks_behind_its_anchor(draft: DraftWeights) -> None:
    found = MaskedTexts.of(TEXTS, [5, 4], ANCHORS, MASKS).logits(draft)
    expected = [TEXTS[0]]
    for text, anchors in zip(TEXTS, ANCHORS, strict=True):
        expected += [[*text[: place + 1], *MASKS[:number]] for place, number in anchors]
    assert len(found) == len(expected)
    for row, tokens in zip(found, expected, strict=True):
        last = torch.zeros((1, len(tokens)), dtype=torch.bool)
        last[0, -1] = True
        alone = draft.logits(torch.tensor([tokens]), last)[0]
        torch.testing.assert_close(row, alone, atol=2e-4, rtol=0)


def test_each_mask_is_taught_the_row_of_its_token(draft: DraftWeights) -> None:
    parallel = ParallelDraft(draft, MASKS, 1.0)
    lesson = lesson_of(TEXTS[0], 1)
    said = list[list[int]]()

    def taught(target: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        said.append([len(target)])
        return forward_kl(target, own)

    (loss,) = parallel.losses([lesson], taught, 1000)([0], 0.0)
    assert loss.requires_grad
    anchors = parallel._anchors(lesson, np.random.default_rng((0, 0, 0)))
    assert said == [[5 + len(anchors)]], "the text's own rows, and those of the masks"
    assert sorted(place for place, number in anchors if number == 1) == [1, 2, 3, 4]
    assert {(place, number - 1) for place, number in anchors if number > 1} < set(anchors)
    assert all(place + number <= 5 for place, number in anchors)
    behind, taught_tokens = [(2, 1), (2, 2)], [90, 91, 92, 93, 94, 92, 93]
    with torch.inference_mode():
        target, own = parallel._pairs([lesson], [behind])
        rows = MaskedTexts.of([TEXTS[0]], [1], [behind], MASKS).logits(draft).log_softmax(-1)
    assert target.exp()[:, 0].tolist() == pytest.approx([1.0] * 7, abs=1e-5)
    torch.testing.assert_close(own[:, 0], rows[range(7), taught_tokens])


@torch.inference_mode()
def test_the_share_of_each_mask_is_that_of_its_rows_alone(draft: DraftWeights) -> None:
    parallel = ParallelDraft(draft, MASKS, 1.0)
    lesson = lesson_of(TEXTS[0], 1, best=71)  # one that the draft agrees with somewhat
    expected = [[coupled_acceptance(*parallel._pairs([lesson], [[]]), has_rest=True)]]
    for number in range(1, 4):
        each = [[(place, mask) for mask in range(1, number + 1)] for place in range(1, 6 - number)]
        pairs = [parallel._pairs([lesson], [anchors]) for anchors in each]
        expected.append([coupled_acceptance(*pair, has_rest=True)[-1:] for pair in pairs])
    means = [torch.cat(chances).mean().item() for chances in expected]
    assert parallel.shares([lesson]) == pytest.approx(means, abs=1e-5)
    assert len(set(means)) == 4


def test_a_few_updates_teach_the_masks() -> None:
    """One text is learnt by heart."""
    fresh = DraftWeights(DRAFT_GGUF)
    parallel = ParallelDraft(fresh, MASKS, 1.0)
    lesson = Lesson(
        np.array([5, *TEXTS[0]], np.int32),
        1,
        np.array([[*TEXTS[0][1:], 9]]).T,
        np.full((6, 1), -1e-6, np.float32),
    )
    before = parallel.shares([lesson])
    optimizer = torch.optim.Adam(fresh.module.parameters(), lr=0.003)
    losses = parallel.losses([lesson], forward_kl, 1000)
    for _ in range(20):
        optimizer.zero_grad()
        for part in losses([0], 0.0):
            part.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    after = parallel.shares([lesson])
    assert min(np.subtract(after, before)) > 0.3


def test_masks_are_tokens_that_no_text_holds(tmp_path: Path) -> None:
    assert choose_masks(DRAFT_GGUF, 3, {125}) == (126, 178, 179)
    assert choose_masks(DRAFT_GGUF, 14, ())[11:] == (187, 188, 188)
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape())
    padding = 299
    kinds = gguf.GGUFReader(tiny).fields["tokenizer.ggml.token_type"].contents()
    assert kinds[padding] == gguf.TokenType.UNUSED
    assert choose_masks(tiny, 1, ()) == (padding,)
    with wording.raises(UserError):
        choose_masks(tiny, 1, range(300))


def test_the_command_writes_masks_and_says_what_they_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out = tmp_path / "prompts.json", tmp_path / "out.gguf"
    prompts.write_text(
        json.dumps(["def add(a, b):\n    return", "import os\n", "class A:\n", "x = [1, 2"] * 2)
    )
    sizes = ["--texts", "8", "--max-tokens", "12", "--threads", "1", "--updates", "2"]
    command = ["align", "--prompts", str(prompts), "--out", str(out), *sizes, "--parallel", "4", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["after"]["by_mask"]) == 3
    assert report["before"]["by_mask"] == []
    with LlamaModel(LlamaSettings(str(out)), weights=False) as words:
        assert words.metadata(PARALLEL) == "125,126,178"
    assert choose_masks(out, 3, {125}) == (125, 126, 178), "a draft that is trained again keeps its masks"


@pytest.mark.parametrize("more", [["1"], ["17"], ["8", "--trim", "1000"]], ids=["one", "many", "trim"])
def test_options_that_do_not_fit_are_refused(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", "--out", str(tmp_path / "out.gguf"), "--parallel", *more]) == 2
    wording.keep(capsys.readouterr().err.splitlines()[-1])
