"""`forerun align` writes a draft that knows the target better, and goes on where it was interrupted."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from common.errors import UserError
from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from edge_client.draft.shared_model import PARALLEL
from forerun.cli import main
from tests import wording
from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf
from tests.training.interrupted import interrupted_after
from training import demo_pair
from training.demo_pair import DRAFT_GGUF
from training.draft_weights import DraftWeights, FloatArray
from training.lessons import Lesson
from training.losses import coupled_acceptance, forward_kl
from training.parallel import MaskedTexts, ParallelDraft, choose_masks
from training.trainer import Optimizer

pytestmark = [pytest.mark.torch, pytest.mark.llama]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(
        json.dumps(["def add(a, b):\n    return", "import os\n", "class A:\n", "x = [1, 2"] * 2)
    )
    sizes = ["--texts", "8", "--max-tokens", "12", "--threads", "1", "--json"]
    return ["align", "--prompts", str(prompts), "--out", str(tmp_path / "out.gguf"), *sizes]


def report_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_the_best_weights_are_written(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    assert main([*command, "--updates", "4"]) == 0
    report = report_of(capsys)
    assert report["after"]["coupled"] >= report["before"]["coupled"]
    assert report["after"]["by_rank"] == sorted(report["after"]["by_rank"])
    assert min(report["after"]["draft_step_ms"].values()) > 0.0
    assert (tmp_path / "out.gguf").read_bytes()[:4] == b"GGUF"
    assert not list(tmp_path.glob("*.training"))


def test_rates_that_do_harm_are_lowered_until_they_do_not(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = list[float]()
    slow_down = Optimizer.slow_down

    def noted(optimizer: Optimizer) -> None:
        slow_down(optimizer)
        slowed.append(optimizer.share)
        assert not any(moment.any() for moment in optimizer.moments.values())

    monkeypatch.setattr(Optimizer, "slow_down", noted)
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    monkeypatch.setattr("training.align.PATIENCE", 100)
    monkeypatch.setattr("training.align.ALL_RATES", (8.0, 2.0))
    assert main([*command, "--updates", "8"]) == 0
    report = report_of(capsys)
    assert slowed[:2] == [0.25, 0.0625]
    assert report["after"]["coupled"] >= report["before"]["coupled"]


def test_a_trimmed_draft_is_written_without_any_update(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--updates", "0", "--trim", "280"]) == 0
    report = report_of(capsys)
    assert (report["tokens"], report["updates"]) == (280, 0)
    assert 0.0 < report["outside"] < 1.0
    assert 0.0 < report["after"]["coupled"] < report["before"]["coupled"]
    with LlamaModel(LlamaSettings(str(tmp_path / "out.gguf")), weights=False) as words:
        assert words.num_vocab == 280


def test_a_second_draft_is_measured_beside_the_first(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the times of a fast draft and a slow target."""
    monkeypatch.setattr("training.predicted.draft_times", lambda file, threads: {1: 1.0, 2: 1.5})
    monkeypatch.setattr("training.align.target_step_ms", lambda *_: {1: 30.0})
    assert main([*command, "--updates", "2", "--boost", str(DRAFT_GGUF)]) == 0
    report = report_of(capsys)
    before, after, both = (report[name] for name in ("before", "after", "both"))
    assert both["first"] == pytest.approx(before["coupled"], abs=1e-5)
    assert both["second"] == pytest.approx(after["coupled"], abs=1e-5)
    assert both["either"] >= max(both["first"], both["second"])
    assert (both["draft_step_ms"], after["draft_step_ms"]) == ({"1": 2.0, "2": 3.0}, {"1": 1.0, "2": 1.5})
    for measured in (before, after, both):
        assert measured["ms_per_token"]["forerun"] < measured["ms_per_token"]["server_streaming"]


def test_an_interrupted_training_ends_as_one_that_is_not(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    assert main([*command, "--updates", "4", "--rank", "4"]) == 0
    whole = report_of(capsys)
    with interrupted_after(2):
        main([*command, "--updates", "4", "--rank", "4"])
    capsys.readouterr()
    assert main([*command, "--updates", "4", "--rank", "4"]) == 0
    after = report_of(capsys)["after"]
    assert all(after[name] == whole["after"][name] for name in ("coupled", "greedy", "by_rank", "by_depth"))


def test_chats_and_texts_of_the_draft_are_read_too(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held out, and so measured, are texts of the target alone."""
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    assert main([*command, "--updates", "1", "--chat", "--on-policy", "0.5", "--texts", "16"]) == 0
    assert report_of(capsys)["held_out_texts"] == 1


@pytest.mark.parametrize(
    "more",
    [
        *(
            ["--temperature", "0"],
            ["--on-policy", "1"],
            ["--adapter", "a.gguf"],
            ["--layers", "x"],
            ["--layers", "5"],
        ),
        *(["--boost", "none.gguf"], ["--boost", str(DRAFT_GGUF), "--trim", "1000"]),
        *(["--trim", "10"], ["--trim", "1000", "--rank", "4", "--adapter", "a.gguf"]),
    ],
)
def test_options_that_do_not_fit_are_refused(
    command: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *more]) == 2
    wording.keep(capsys.readouterr().err.splitlines()[-1])


# A mask is trained in the place where the edge evaluates it, and its row is taught what follows there.


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
def test_options_that_do_not_fit_masks_are_refused(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", "--out", str(tmp_path / "out.gguf"), "--parallel", *more]) == 2
    wording.keep(capsys.readouterr().err.splitlines()[-1])


# A weights that is read and written is the same weights in llama.cpp, with its change or without its
# layers.


TOKENS = list(range(300, 316))


def by_llama(path: Path, adapter: str = "") -> FloatArray:
    with LlamaRuntime(LlamaSettings(str(path), n_ctx=256, exact=True, adapter=adapter)) as runtime:
        count = len(TOKENS)
        runtime.batch.fill(TOKENS, list(range(count)), [0] * count, [1] * count)
        assert runtime.decode() == 0
        return runtime.logits(count).copy()


def by_torch(weights: DraftWeights) -> FloatArray:
    with torch.inference_mode():
        logits: FloatArray = weights.logits(
            torch.tensor([TOKENS]), torch.ones(1, len(TOKENS), dtype=torch.bool)
        ).numpy()
    return logits


@pytest.fixture
def weights() -> DraftWeights:
    return DraftWeights(demo_pair.DRAFT_GGUF)


def test_an_unchanged_draft_is_written_as_it_was(weights: DraftWeights, tmp_path: Path) -> None:
    weights.write(tmp_path / "same.gguf", "Q8_0")
    np.testing.assert_array_equal(by_llama(tmp_path / "same.gguf"), by_llama(demo_pair.DRAFT_GGUF))


def test_a_low_rank_change_is_written_into_the_weights_and_as_an_adapter(
    weights: DraftWeights, tmp_path: Path
) -> None:
    before = by_torch(weights)
    weights.write(tmp_path / "base.gguf", "F32")
    weights.add_low_rank(4)
    trained = [name for name, weight in weights.module.named_parameters() if weight.requires_grad]
    with torch.no_grad():
        for name in trained:
            weights.module.get_parameter(name).normal_(0.0, 0.02)
    changed = by_torch(weights)
    assert np.abs(changed - before).max() > 0.01
    weights.write(tmp_path / "merged.gguf", "F32")
    np.testing.assert_allclose(by_llama(tmp_path / "merged.gguf"), changed, atol=1e-3)
    weights.write_adapter(tmp_path / "adapter.gguf")
    adapted = by_llama(tmp_path / "base.gguf", str(tmp_path / "adapter.gguf"))
    np.testing.assert_allclose(adapted, changed, atol=1e-3)
    assert (tmp_path / "adapter.gguf").stat().st_size < demo_pair.DRAFT_GGUF.stat().st_size / 4


def test_a_draft_may_lose_layers(weights: DraftWeights, tmp_path: Path) -> None:
    with wording.raises(UserError):
        weights.check_layers([0, 1])
    weights.keep_layers([0])
    weights.write(tmp_path / "short.gguf", "F32")
    np.testing.assert_allclose(by_llama(tmp_path / "short.gguf"), by_torch(weights), atol=1e-3)


def test_an_unknown_type_is_refused_before_anything_is_written(weights: DraftWeights, tmp_path: Path) -> None:
    with wording.raises(UserError):
        weights.write(tmp_path / "out.gguf", "Q9")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"no model")
    with wording.raises(UserError):
        DraftWeights(path)
