"""A follower trains on new texts of a log, and publishes a draft where it knows the target better."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import UserError
from common.llama.load_trial import KeptTable
from common.sampling import SamplingParams
from edge_client.draft.canary import VERDICTS, Verdict, Verdicts
from edge_client.draft.updated_draft import newest
from schemes.training_log.records import LoggedText, LogWriter
from tests.training.logged import fill, some_prompts
from training import demo_pair
from training.align import AlignOptions, aligned
from training.following import KEPT, PUBLISHED, Follower, follow
from training.heads import TrainOptions, trained
from training.logged_texts import TooFewTextsError

TEXT = LoggedText(
    "target", b"", 0.03, *(np.ones(4, np.int32),) * 2, np.ones((4, 3), np.int32), np.ones((4, 3), np.float32)
)


class Trainings:
    """Trainings that come to what a test says, and are remembered."""

    def __init__(self, *results: tuple[float, float]) -> None:
        self.results = list(results)
        self.drafts = list[Path]()
        self.outs = list[Path]()

    def __call__(self, options: AlignOptions) -> dict[str, Any]:
        assert not options.follow
        self.drafts.append(options.draft)
        self.outs.append(options.out)
        options.out.write_text(f"draft {len(self.outs)}")
        before, after = self.results.pop(0)
        return {"before": {"coupled": before}, "after": {"coupled": after}}


@pytest.fixture
def grow(tmp_path: Path) -> Callable[[int], None]:
    """Add texts to the log, each a second later."""
    times = iter(range(1, 1000))
    writer = LogWriter(tmp_path / "log", 1 << 24, clock=lambda: float(next(times)))

    def grow(count: int) -> None:
        for _ in range(count):
            writer._write("", TEXT)

    return grow


@pytest.fixture
def options(tmp_path: Path) -> AlignOptions:
    (tmp_path / "out").mkdir()
    (tmp_path / "log").mkdir()
    (tmp_path / "draft.gguf").write_text("the draft before")
    return AlignOptions(
        log=tmp_path / "log",
        out=tmp_path / "out",
        draft=tmp_path / "draft.gguf",
        follow=True,
        texts=8,
        margin=0.05,
    )


def test_a_round_publishes_on_a_rise_by_the_margin_and_not_without(
    options: AlignOptions, grow: Callable[[int], None]
) -> None:
    trainings = Trainings((0.5, 0.54), (0.5, 0.56), (0.56, 0.56))
    follower = Follower(options, trainings)
    grow(7)
    assert follower.look() is None
    grow(1)
    first = follower.look()
    assert first is not None
    assert (first.before, first.after, first.published) == (0.5, 0.54, None)
    assert newest(str(options.out), "") == ("", None)
    assert follower.look() is None, "no text is new"
    grow(8)
    second = follower.look()
    assert second is not None
    assert second.published is not None
    assert newest(str(options.out), "")[0] == str(second.published)
    assert second.published.read_text() == "draft 2"
    follower = Follower(replace(options, margin=0.0), trainings)
    assert follower.look() is None, "a restart remembers what was seen"
    grow(8)
    third = follower.look()
    assert third is not None
    assert third.published is None, "no rise"
    assert trainings.drafts == [options.draft, options.draft, second.published]
    assert len([*options.out.glob("*.gguf")]) == 1


def test_the_newest_published_drafts_stay_and_what_others_put_there(
    options: AlignOptions, grow: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (f"{PUBLISHED}{number}.gguf" for number in range(5))
    monkeypatch.setattr(time, "strftime", lambda *_: next(names))
    (options.out / "by-hand.gguf").write_text("a draft of the owner")
    follower = Follower(options, Trainings(*[(0.5, 0.6)] * 5))
    for _ in range(5):
        grow(8)
        assert follower.look() is not None
    left = sorted(path.name for path in options.out.glob("*.gguf"))
    assert left == ["by-hand.gguf", *(f"{PUBLISHED}{number}.gguf" for number in range(5 - KEPT, 5))]


def test_what_a_verifier_of_the_folder_kept_last_stays(
    options: AlignOptions, grow: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (f"{PUBLISHED}{number}.gguf" for number in range(KEPT + 2))
    monkeypatch.setattr(time, "strftime", lambda *_: next(names))
    follower = Follower(options, Trainings(*[(0.5, 0.6)] * (KEPT + 2)))
    verdicts = Verdicts(KeptTable(options.out / VERDICTS))
    for verdict in (Verdict.KEPT, *[Verdict.WORSE] * (KEPT + 1)):
        grow(8)
        done = follower.look()
        assert done is not None
        verdicts.keep(str(done.published), verdict)
    left = sorted(path.name for path in options.out.glob("*.gguf"))
    assert left == [f"{PUBLISHED}{number}.gguf" for number in (0, *range(2, KEPT + 2))]


def test_a_round_after_a_rollback_goes_on_from_what_is_in_force(
    options: AlignOptions, grow: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (f"{PUBLISHED}{number}.gguf" for number in range(5))
    monkeypatch.setattr(time, "strftime", lambda *_: next(names))
    trainings = Trainings(*[(0.5, 0.6)] * 5)
    follower, published = Follower(options, trainings), list[Path]()
    verdicts = Verdicts(KeptTable(options.out / VERDICTS))
    for number, verdict in enumerate((Verdict.WORSE, Verdict.KEPT, None, Verdict.WORSE, None)):
        grow(8)
        done = follower.look()
        assert done is not None
        assert done.published is not None
        published.append(done.published)
        os.utime(done.published, (number, number))  # clocks of files are coarse
        if verdict is not None:
            verdicts.keep(str(done.published), verdict)
    _, kept, open_, *_ = published
    assert trainings.drafts == [options.draft, options.draft, kept, open_, kept]


def test_an_interrupted_round_is_gone_on_with_and_its_texts_stay_new(
    options: AlignOptions, grow: Callable[[int], None]
) -> None:
    def interrupted(part: AlignOptions) -> dict[str, Any]:
        part.out.with_name(part.out.name + ".training").write_text("half done")
        raise KeyboardInterrupt

    grow(8)
    with pytest.raises(KeyboardInterrupt):
        Follower(options, interrupted).look()
    (left,) = options.out.iterdir()
    assert newest(str(options.out), "") == ("", None), "devices see nothing of it"
    trainings = Trainings((0.5, 0.5))
    assert Follower(options, trainings).look() is not None
    assert left.name == trainings.outs[0].name + ".training"


@pytest.mark.parametrize(("num_new", "updates"), [(1, 400), (0, 7)], ids=["texts", "options"])
def test_an_interrupted_round_of_others_is_deleted(
    num_new: int, updates: int, options: AlignOptions, grow: Callable[[int], None]
) -> None:
    def interrupted(part: AlignOptions) -> dict[str, Any]:
        part.out.with_name(part.out.name + ".training").write_text("half done")
        raise KeyboardInterrupt

    grow(8)
    with pytest.raises(KeyboardInterrupt):
        Follower(options, interrupted).look()
    (left,) = options.out.iterdir()
    grow(num_new)
    assert Follower(replace(options, updates=updates), Trainings((0.5, 0.5))).look() is not None
    assert not left.exists()


def test_texts_that_are_too_few_for_both_parts_wait_for_more(
    options: AlignOptions, grow: Callable[[int], None]
) -> None:
    def too_few(part: AlignOptions) -> dict[str, Any]:
        raise TooFewTextsError("none to measure")

    grow(8)
    follower = Follower(options, too_few)
    assert follower.look() is None
    follower._train = lambda part: pytest.fail("it tried again without a new text")
    assert follower.look() is None
    assert Follower(options, Trainings((0.1, 0.9))).look() is not None


def test_a_state_that_cannot_be_read_is_told(options: AlignOptions) -> None:
    (options.out / ".following.json").write_text("{}")
    with pytest.raises(UserError):
        Follower(options, Trainings())


@pytest.mark.torch
@pytest.mark.llama
def test_a_verifier_s_log_becomes_a_better_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloud_verifier.engine.torch_loading import load_engine

    monkeypatch.setattr("training.align.CHECK_EVERY", 5)
    (tmp_path / "out").mkdir()
    engine, _ = load_engine(str(demo_pair.TARGET_DIR), 16384)
    prompts = [engine.model.tokenize(text) for text in some_prompts(40)]
    texts = fill(
        tmp_path / "log", engine, prompts, SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True)
    )
    assert len(texts) == len([text for text in texts if text]) == 40
    options = AlignOptions(
        log=tmp_path / "log", out=tmp_path / "out", follow=True, texts=40, updates=20, margin=0.0, threads=1
    )
    done = Follower(options, aligned).look()
    assert done is not None
    assert done.published is not None
    assert done.after > done.before > 0.3
    assert done.published.read_bytes()[:4] == b"GGUF"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".following.json", done.published.name}


@pytest.mark.torch
def test_a_verifier_s_log_becomes_better_heads_and_nothing_learnt_is_not_published(tmp_path: Path) -> None:
    from cloud_verifier.engine.torch_loading import load_engine
    from common.vocabulary import Vocabulary
    from schemes.drafters.heads import load_heads
    from schemes.drafters.newer_heads import NewerHeads

    (tmp_path / "out").mkdir()
    engine, _ = load_engine(str(demo_pair.TARGET_DIR), 16384)
    prompts = [engine.model.tokenize(text) for text in some_prompts(40)]
    fill(tmp_path / "log", engine, prompts, SamplingParams(temperature=0.8, max_tokens=24, ignore_eos=True))
    options = TrainOptions(
        log=tmp_path / "log",
        out=tmp_path / "out",
        follow=True,
        kind="medusa",
        depth=2,
        texts=40,
        steps=40,
        margin=0.01,
        threads=1,
    )
    first = Follower(options, trained).look()
    assert first is not None
    assert first.published is not None
    assert first.after >= first.before + 0.01
    (tmp_path / "out" / ".following.json").unlink()  # all texts are new once more
    second = Follower(replace(options, steps=1, depth=5, margin=0.05), trained).look()
    assert second is not None
    assert second.before == pytest.approx(first.after, abs=0.01), "it begins with what was published"
    assert second.published is None
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".following.json", first.published.name}
    heads = load_heads(f"heads:{tmp_path / 'out'}", engine.model, Vocabulary(engine.model.token_table()))
    assert isinstance(heads, NewerHeads)
    assert heads.path == str(first.published)
    assert heads.depth == 2, "the kind and depth of what was published"


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_it_runs_at_the_lowest_priority(
    options: AlignOptions,
    grow: Callable[[int], None],
    name: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = list[object]()
    monkeypatch.setattr(os, "nice", taken.append)

    def signalled(part: AlignOptions) -> dict[str, Any]:
        if "published" in capsys.readouterr().out:
            os.kill(os.getpid(), name)
        part.out.write_text("a draft")
        grow(8)
        return {"before": {"coupled": 0.5}, "after": {"coupled": 0.6}}

    grow(8)
    before = signal.getsignal(name)
    assert follow(options, signalled) == 0
    assert signal.getsignal(name) is before
    assert taken == [19]
    assert len([*options.out.glob("[!.]*.gguf")]) == 1
