"""A log teaches what the target itself would: the same tokens, and its distributions at the training's
temperature."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_verifier.engine.torch_loading import load_engine as load_torch
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions
from common.errors import UserError
from common.sampling import SamplingParams
from forerun.cli import main
from schemes.training_log.records import LogKey, LogReader, LogWriter
from tests import wording
from tests.training.logged import fill, some_prompts
from training import demo_pair
from training.align import AlignOptions
from training.lessons import read_lesson
from training.logged_texts import at_temperature, is_held_out, logged_lessons

pytestmark = [pytest.mark.torch, pytest.mark.llama]

SAMPLING = SamplingParams(temperature=1.0, max_tokens=14, seed=1, ignore_eos=True)
NUM_TEXTS = 24


@contextmanager
def engine_of(kind: str) -> Iterator[tuple[Any, Any]]:
    if kind == "llama":
        from cloud_verifier.llama.llama_loading import load_engine

        engine, _, _ = load_engine(str(demo_pair.DRAFT_GGUF), 4096, 32, 512, LlamaOptions(threads=1))
        with engine.runtime:
            yield engine, lambda text: [*engine.runtime.begin_ids, *engine.runtime.tokenize(text, False)]
        return
    torch_engine, _ = load_torch(str(demo_pair.TARGET_DIR), 4096)
    yield torch_engine, lambda text: list(torch_engine.model.tokenize(text))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of the bundled target."""
    folder = tmp_path_factory.mktemp("log")
    with engine_of("torch") as (engine, tokenize):
        fill(folder, engine, [tokenize(text) for text in some_prompts(NUM_TEXTS)], SAMPLING)
    return folder


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("width", [20, 50])
def test_another_temperature_is_told_from_the_likeliest_tokens(temperature: float, width: int) -> None:
    logits = np.random.default_rng(1).normal(0.0, 5.0, (40, 50))
    law = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    wanted = logits / temperature
    wanted -= np.logaddexp.reduce(wanted, axis=1, keepdims=True)
    order = np.argsort(-law)[:, :width]
    listed = np.take_along_axis(law, order, 1).astype(np.float16).astype(np.float32)
    error = np.exp(at_temperature(listed, temperature)) - np.exp(np.take_along_axis(wanted, order, 1))
    assert np.abs(error).max() < 0.005


@pytest.mark.parametrize("kind", ["torch", "llama"])
def test_lessons_are_those_that_the_target_reads(kind: str, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    options = AlignOptions(log=tmp_path / "log", out=tmp_path / "out.gguf", max_tokens=10, texts=NUM_TEXTS)
    with engine_of(kind) as (engine, tokenize):
        prompts = [tokenize(text) for text in some_prompts(NUM_TEXTS)]
        texts = fill(tmp_path / "log", engine, prompts, SAMPLING)
        taught, held_out, step_ms = logged_lessons(options, options.draft, options.temperature)
        whole = {(*prompt, *text[:9]): len(prompt) - 1 for prompt, text in zip(prompts, texts, strict=True)}
        assert {tuple(lesson.tokens.tolist()) for lesson in (*taught, *held_out)} == set(whole)
        tolerance = 0.05 if isinstance(engine, LlamaEngine) else 0.01
        for lesson in taught[:3]:
            first = whole[tuple(lesson.tokens.tolist())]
            read = read_lesson(engine, lesson.tokens.tolist(), first, options.temperature)
            assert (lesson.first, lesson.best.shape) == (first, (10, 20))
            for place in range(10):
                expected = dict(zip(read.best[place].tolist(), np.exp(read.logprobs[place]), strict=True))
                for token, logprob in zip(lesson.best[place], lesson.logprobs[place], strict=True):
                    assert np.exp(logprob) == pytest.approx(expected.get(int(token), 0.0), abs=tolerance)
    assert step_ms[1] > 0.0


def test_a_text_without_its_prompt_begins_at_its_first_token(log: Path, tmp_path: Path) -> None:
    texts, _ = LogReader(log).newest(100)
    writer = LogWriter(tmp_path / "log", 1 << 24)
    bare = [
        replace(
            text,
            prompt=text.prompt[:0],
            tokens=text.tokens[:end],
            best=text.best[:end],
            logprobs=text.logprobs[:end],
        )
        for text in texts
        for end in (8, 10, 12, 14)
    ]
    for text in bare:
        writer._write("", text)
    options = AlignOptions(log=tmp_path / "log", out=tmp_path / "out.gguf", temperature=1.0)
    taught, held_out, _ = logged_lessons(options, options.draft, options.temperature)
    lessons = [*taught, *held_out]
    assert sorted((lesson.tokens[lesson.first :].tolist(), lesson.best.tolist()) for lesson in lessons) == (
        sorted((text.tokens[:-1].tolist(), text.best[1:].tolist()) for text in bare)
    )


def test_texts_of_other_tokens_are_refused_or_left_out(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, _ = LogReader(log).newest(100)
    writer = LogWriter(tmp_path / "log", 1 << 24)
    options = AlignOptions(log=tmp_path / "log", out=tmp_path / "out.gguf")
    writer._write("", replace(texts[0], fingerprint=bytes(32)))
    with pytest.raises(UserError):
        logged_lessons(options, options.draft, options.temperature)
    writer._write("", replace(texts[0], model="an earlier target"))
    for text in texts:
        writer._write("", text)
    taught, held_out, _ = logged_lessons(options, options.draft, options.temperature)
    assert len(taught) + len(held_out) == NUM_TEXTS
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert len(held_out) == sum(map(is_held_out, texts)) > 0


def test_a_draft_is_trained_from_an_encrypted_log_alone(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.align.CHECK_EVERY", 1)
    (tmp_path / "key").write_text("ab" * 32)
    writer = LogWriter(tmp_path / "log", 1 << 24, LogKey(tmp_path / "key"))
    for text in LogReader(log).newest(100)[0]:
        writer._write("acme", text)
    command = ["align", "--log", str(tmp_path / "log"), "--log-key", str(tmp_path / "key"), "--json"]
    command += [
        "--target",
        "nowhere",
        "--out",
        str(tmp_path / "out.gguf"),
        "--updates",
        "3",
        "--threads",
        "1",
    ]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["after"]["coupled"] >= report["before"]["coupled"] > 0.2
    assert report["after"]["ms_per_token"]["forerun"] > 0.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "log", "out.gguf"]


@pytest.mark.parametrize(
    "options",
    [
        ["--follow"],
        ["--log-key", "key"],
        ["--log", ".", "--chat"],
        ["--log", ".", "--on-policy", "0.5"],
        ["--log", ".", "--follow"],
        ["--log", "lab", "--follow", "--trim", "300"],
        ["--log", "lab", "--follow", "--parallel", "8"],
        ["--log", "no such folder"],
        ["--log", "lab", "--log-key", "no such key"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit_a_log_are_refused(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", "--out", str(tmp_path / "out.gguf"), *options]) == 2
    wording.keep(capsys.readouterr().err.splitlines()[-1])
