"""Newer heads of a folder replace those in force if they guess no worse, and change no text."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from cloud_verifier.core.engine_protocol import (
    Followers,
    GuessItem,
    GuessPlan,
    GuessResult,
    StepPlan,
    StepResult,
)
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.attention.backend import KVStore
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import OwnDraft, TorchEngine
from common.calibration import Confidence
from common.errors import UserError
from common.messages import Open
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.draft import canary
from edge_client.draft.canary import Verdict
from schemes.drafters import newer_heads
from schemes.drafters.drafter import Drafted, DraftModel, DraftRows
from schemes.drafters.heads import KINDS, HeadsLabel, load_heads, save_heads
from schemes.drafters.newer_heads import HeadsInTrial, NewerHeads, ServedHeads
from schemes.drafters.whole_models import EarlyExit
from tests import wording
from tests.cloud_verifier.engine.tiny import ints, target
from tests.schemes.drafters.rig import DEPTH
from tests.support.played import played

pytestmark = pytest.mark.torch

VOCABULARY = Vocabulary((b"a", b"b"))
PRINT = VOCABULARY.fingerprint
WARM = SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True)
WAVE = 32
"""Texts that are written together."""


class Knowing(EarlyExit):
    """Heads that know the target's choice at a share of the positions, and elsewhere what is least likely."""

    def __init__(self, target: TargetModel, share: float) -> None:
        super().__init__(target, target.num_layers, DEPTH)
        self._knows = np.random.default_rng(0).random(256) < share

    def forward(self, rows: DraftRows) -> Drafted:
        logits = super().forward(rows).logits
        at = rows.positions.index_select(0, rows.outputs) % 256
        return Drafted(torch.where(torch.from_numpy(self._knows)[at][:, None], logits, -100 * logits))


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return target("llama")


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every step, judge short texts, and give half of them the newer heads."""
    monkeypatch.setattr(newer_heads, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(newer_heads, "COUNTED", 4)
    monkeypatch.setattr(newer_heads, "LONGEST", 12)
    monkeypatch.setattr(canary, "SHARE", 0.5)


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str], Path]:
    """Put a file of `Knowing` heads into the folder, the newest."""
    times = iter(range(1, 1000))

    def put(name: str, content: str) -> Path:
        path = tmp_path / f"{name}.safetensors"
        path.write_text(content)
        os.utime(path, (at := next(times), at))
        return path

    return put


def knowing(model: TargetModel, folder: Path) -> NewerHeads:
    return NewerHeads(folder, lambda path: Knowing(model, float(path.read_text())))


def save(kind: str, model: TargetModel, path: Path, seed: int, scale: float = 0.3) -> None:
    """Save heads of random weights."""
    torch.manual_seed(seed)
    heads = KINDS[kind](model, DEPTH - 1 if kind != "exit" else 1)
    for weights in heads.parameters():
        torch.nn.init.normal_(weights, std=scale)
    save_heads(heads, HeadsLabel.of(kind, DEPTH - 1 if kind != "exit" else 1, model, PRINT), path)


def engine_of(draft: OwnDraft | None, model: TargetModel) -> TorchEngine:
    return TorchEngine(model, 4096, fingerprint=PRINT, draft=draft)


def trial_of(engine: TorchEngine) -> HeadsInTrial:
    assert isinstance(engine.drafter, HeadsInTrial)
    return engine.drafter


def waves(engine: TorchEngine, count: int, seed: int = 0) -> Iterator[tuple[list[list[int]], int]]:
    """Let the engine write waves of texts. Yield each with the number of guessed nodes."""
    rng = np.random.default_rng(seed)
    for first in range(0, count * WAVE, WAVE):
        scheduler = VerifyScheduler(engine.info, SchedulerConfig())
        for key in range(first, first + WAVE):
            prompt = tuple(rng.integers(2, 97, rng.integers(3, 9)).tolist())
            sampling = replace(
                WARM, seed=key, temperature=0.8 if key % 2 else 0.0
            )  # greedy text has no noise
            scheduler.on_open(key, Open(prompt, sampling, PRINT), 0.0)
        texts = played(scheduler, engine)
        yield [texts[key] for key in sorted(texts)], scheduler.counters.num_guessed


def at_step(engine: TorchEngine, number: int, act: Callable[[], None]) -> None:
    """Do something before the engine's step of this number."""
    evaluate, steps = engine.evaluate, iter(range(10**6))

    def noted(plan: StepPlan) -> StepResult:
        if next(steps) == number:
            act()
        return evaluate(plan)

    engine.evaluate = noted  # type: ignore[method-assign]


def looked(drafter: HeadsInTrial) -> None:
    """Have the thread look once, and wait for it."""
    drafter._try_newer()
    if drafter._thread is not None:
        drafter._thread.join()


# Texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["recurrent", "medusa", "exit", "pass"])
def test_texts_are_the_same_with_all_heads_and_across_swaps_in_their_middle(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COUNTED", "LONGEST"):  # no text is judged; the test itself does
        monkeypatch.setattr(newer_heads, name, 1000)
    model = target("llama")
    ((wanted, _),) = waves(engine_of(None, model), 1)
    assert len(wanted) == WAVE
    for number in range(2):
        save(kind, model, tmp_path / f"{number}.safetensors", number)
    for number in range(2):
        ((texts, num_guessed),) = waves(
            engine_of(load_heads(str(tmp_path / f"{number}.safetensors"), model, VOCABULARY), model), 1
        )
        assert texts == wanted
        assert num_guessed > 0
    for verdict in (Verdict.KEPT, Verdict.WORSE):
        (tmp_path / "1.safetensors").rename(tmp_path / "1.later")
        engine = engine_of(load_heads(f"heads:{tmp_path}", model, VOCABULARY), model)
        (tmp_path / "1.later").rename(tmp_path / "1.safetensors")
        (tmp_path / ".verdicts.json").unlink(missing_ok=True)
        drafter, heads = trial_of(engine), set[str]()

        def begin(drafter: HeadsInTrial = drafter) -> None:
            looked(drafter)
            drafter._try_newer()
            drafter._texts.clear()  # all texts are drawn anew, in their middle

        def end(drafter: HeadsInTrial = drafter, verdict: Verdict = verdict, heads: set[str] = heads) -> None:
            heads.update(Path(text.heads.path).name for text in drafter._texts.values())
            drafter._end(verdict, "a test says so")

        at_step(engine, 2, begin)
        at_step(engine, 4, end)
        ((texts, num_guessed),) = waves(engine, 1)
        assert texts == wanted
        assert num_guessed > 0
        assert heads == {"0.safetensors", "1.safetensors"}
        assert Path(drafter.current.path).name == ("1" if verdict is Verdict.KEPT else "0") + ".safetensors"


# Verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "stays"), [("0.0", "good"), ("1.0", "new")], ids=["garbage", "better"])
def test_garbage_is_rolled_back_for_good_and_better_heads_stay(
    share: str, stays: str, model: TargetModel, put: Callable[[str, str], Path], tmp_path: Path
) -> None:
    put("good", "0.7")
    engine = engine_of(knowing(model, tmp_path), model)
    put("new", share)
    drafter = trial_of(engine)
    looked(drafter)
    list(waves(engine, 4))
    assert drafter.trial is None, "it was judged"
    assert Path(drafter.current.path).stem == stays
    again = trial_of(engine_of(knowing(model, tmp_path), model))
    assert Path(again.current.path).stem == stays, "a verdict holds after a restart"
    for each in (drafter, again):
        looked(each)
        assert each._loaded is None
    put("new", "0.8")
    looked(drafter)
    assert drafter._loaded is not None, "another file of that name has no verdict"


class Guesser:
    """A drafter of texts whose tokens are all 1. Its first candidate is right as often as its model says."""

    def __init__(self, model: Any, _engine: object = None) -> None:
        self._share, self._rng = float(model.share), np.random.default_rng(model.seed)
        self.tokens, self.kv = np.ones(64, np.int32), KVStore(1)

    def sibling(self, model: Any, _kv: KVStore) -> Guesser:
        return Guesser(model)

    def guess(self, plan: GuessPlan) -> GuessResult:
        best = [1 if self._rng.random() < self._share else 2 for _ in plan.items]
        return GuessResult(tuple((Followers((), (token,), (0.0,)),) for token in best))


def verdict_on(folder: Path, share: float, seed: int) -> Verdict:
    """Return the verdict on heads that are right at this share of the places, those in force at 0.6."""
    heads = SimpleNamespace(share=0.6, seed=2 * seed, depth=1, num_scratch=0, first_position=0)
    heads.has_own_kv = False
    draft = NewerHeads(folder, lambda _path: cast(Any, heads))
    drafter = HeadsInTrial(draft, cast(Any, None), np.random.default_rng(seed).random)
    newer = SimpleNamespace(share=share, seed=2 * seed + 1)
    drafter._loaded = ServedHeads("newer", drafter._sibling(cast(Any, newer), KVStore(1)))
    drafter._try_newer()
    verdicts = list[Verdict]()
    drafter._end = lambda verdict, reason: verdicts.append(verdict)  # type: ignore[method-assign]
    for session in range(4000):
        for length in range(3, 4 + newer_heads.COUNTED):
            item = GuessItem(session, ints(range(length)), 1, 1, 1, Confidence(), WARM)
            drafter.guess(GuessPlan((item,)))
        if verdicts:
            return verdicts[0]
    return Verdict.OPEN


@pytest.mark.parametrize(
    ("share", "wrong"), [(0.6, Verdict.WORSE), (0.5, Verdict.KEPT)], ids=["equal", "worse"]
)
def test_verdicts_are_wrong_no_more_often_than_stated(
    share: float,
    wrong: Verdict,
    put: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newer_heads, "Drafter", Guesser)
    monkeypatch.setattr(newer_heads, "COUNTED", 8)
    put("heads", "")
    verdicts = Counter(verdict_on(tmp_path, share, seed) for seed in range(100))
    assert verdicts[wrong] <= canary.ERROR * 100
    assert verdicts[Verdict.OPEN] <= 5


def test_a_text_keeps_its_heads_and_the_older_go_when_it_has_ended(
    model: TargetModel, put: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer_heads, "FORGET_EVERY", 10)
    put("0", "0.6")
    engine = engine_of(knowing(model, tmp_path), model)
    drafter = trial_of(engine)
    put("1", "0.6")
    begun = list[object]()

    def end() -> None:
        begun.extend(text.heads for text in drafter._texts.values())
        drafter._end(Verdict.KEPT, "a test says so")

    looked(drafter)
    at_step(engine, 6, end)
    list(waves(engine, 1))
    assert [text.heads for text in drafter._texts.values()] == begun
    assert {drafter.current, drafter.other} == set(begun)
    list(waves(engine, 4, seed=1))
    assert drafter.other is None


# Files ------------------------------------------------------------------------------------------------------


def foreign(model: TargetModel, path: Path) -> None:
    heads = KINDS["medusa"](model, 2)
    save_heads(heads, replace(HeadsLabel.of("medusa", 2, model, PRINT), vocabulary="00"), path)


def broken(model: TargetModel, path: Path) -> None:
    path.write_bytes(b"no safetensors")


def of_another_kind(model: TargetModel, path: Path) -> None:
    save("recurrent", model, path, 1)


def no_numbers(model: TargetModel, path: Path) -> None:
    heads = KINDS["medusa"](model, 2)
    heads.get_parameter("biases").data[1, 0] = float("nan")
    save_heads(heads, HeadsLabel.of("medusa", 2, model, PRINT), path)


@pytest.mark.parametrize("bad", [foreign, broken, of_another_kind, no_numbers])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    bad: Callable[[TargetModel, Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = target("llama")
    save("medusa", model, tmp_path / "good.safetensors", 0)
    engine = engine_of(load_heads(f"heads:{tmp_path}", model, VOCABULARY), model)
    bad(model, tmp_path / "bad.safetensors")
    drafter = trial_of(engine)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            looked(drafter)
    assert drafter._loaded is None
    assert Path(drafter.current.path).stem == "good"
    (record,) = caplog.records
    assert "bad.safetensors" in record.getMessage()


def test_heads_whose_logits_overflow_are_rolled_back(tmp_path: Path) -> None:
    model = target("llama")
    save("medusa", model, tmp_path / "good.safetensors", 0)
    engine = engine_of(load_heads(f"heads:{tmp_path}", model, VOCABULARY), model)
    save("medusa", model, tmp_path / "wild.safetensors", 1, scale=1e38)
    ((wanted, _),) = waves(engine_of(None, model), 1)
    drafter = trial_of(engine)
    looked(drafter)
    ((texts, num_guessed),) = waves(engine, 1)
    assert texts == wanted
    assert num_guessed > 0
    assert drafter.trial is None
    assert Path(drafter.current.path).stem == "good"


def test_a_folder_without_heads_is_refused(tmp_path: Path, model: TargetModel) -> None:
    with wording.raises(UserError):
        load_heads(f"heads:{tmp_path}", model, VOCABULARY)


def test_a_restart_serves_what_was_in_force_and_nothing_that_was_rolled_back(
    model: TargetModel, put: Callable[[str, str], Path], tmp_path: Path
) -> None:
    in_force = put("0", "0.6")
    verdicts = knowing(model, tmp_path).verdicts
    untried = put("1", "0.7")
    assert knowing(model, tmp_path).path == str(in_force)
    in_force.unlink()
    verdicts.keep(str(rolled_back := put("2", "0.8")), Verdict.WORSE)
    assert knowing(model, tmp_path).path == str(untried)
    shutil.copy(rolled_back, put("3", "0.8"))
    assert knowing(model, tmp_path).path == str(untried), "a copy has the verdict of its content"
    untried.unlink()
    with wording.raises(UserError):
        knowing(model, tmp_path)


def test_heads_for_which_memory_was_short_are_told_and_tried_again(
    model: TargetModel,
    put: Callable[[str, str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(_path: Path) -> DraftModel:
        raise torch.OutOfMemoryError("a test says so")

    put("0", "0.6")
    drafter = trial_of(engine_of(knowing(model, tmp_path), model))
    put("1", "0.6")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(drafter._draft, "_load", short)
        looked(drafter)
    (record,) = caplog.records
    assert "1.safetensors" in record.getMessage()
    assert drafter._loaded is None
    looked(drafter)
    assert drafter._loaded is not None


def test_memory_counts_the_heads_on_trial(tmp_path: Path) -> None:
    model = target("llama")
    save("recurrent", model, tmp_path / "a.safetensors", 0)
    sizes = list[int]()
    sources: Sequence[str] = (str(tmp_path / "a.safetensors"), f"heads:{tmp_path}")
    for source in sources:
        engine = engine_of(load_heads(source, model, VOCABULARY), model)
        list(waves(engine, 1))
        assert engine.drafter is not None
        engine.drafter.take_memory()
        sizes.append(engine.drafter.slot_bytes)
    features = model.hidden_size * 4
    assert sizes[1] - features == 2 * (sizes[0] - features)
