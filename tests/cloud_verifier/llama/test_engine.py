"""GGUF targets: the bundled draft's file, served as a target."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import Ask, FloatArray, Offer, StepPlan
from cloud_verifier.engine.packing import PackedStep, item_of
from cloud_verifier.llama import llama_probe as module
from cloud_verifier.llama.forward import LlamaForward
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine, open_runtime
from cloud_verifier.llama.llama_probe import probe
from common.acceptance import Acceptance, AcceptanceRule
from common.errors import UserError
from common.grammar import json_schema_grammar
from common.llama import load_trial
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from lab.benchmarks.llama_repeats import count_repeats
from tests.edge_client.draft.tiny_architectures import (
    ARCHITECTURES,
    EXPERTS,
    write_architecture,
    write_header,
)
from tests.edge_client.draft.tiny_gguf import END_OF_TEXT, Fields, TinyShape, write_copy, write_tiny_gguf
from tests.real.models import Alone
from tests.support.served import written
from training.demo_pair import DRAFT_GGUF

pytestmark = [pytest.mark.llama]

SLOTS = 1024
ONE_THREAD = LlamaOptions(threads=1)
PROMPT = "def total(numbers):\n    '''Return the sum of the numbers.'''\n"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "id": {"type": "integer"}},
    "required": ["name", "id"],
}
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=60, ignore_eos=True),
    "sampled": SamplingParams(0.8, top_k=40, top_p=0.9, max_tokens=60, seed=4, ignore_eos=True),
    "penalties": SamplingParams(
        0.8, repetition_penalty=1.1, frequency_penalty=0.2, logit_bias=((7, 2.0),), max_tokens=60, seed=5
    ),
}

Table = tuple[bytes | None, ...]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[LlamaEngine, Table]]:
    engine, table, _ = load_engine(str(DRAFT_GGUF), SLOTS, 64, 256, ONE_THREAD)
    yield engine, table
    engine.runtime.close()


@pytest.fixture(scope="module")
def alone() -> Iterator[LlamaRuntime]:
    with open_runtime(str(DRAFT_GGUF), SLOTS, 64, 256, ONE_THREAD) as runtime:
        yield runtime


@pytest.mark.grpc
@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_texts_are_llama_cpps_own_with_drafts_and_without(
    kind: str, served: tuple[LlamaEngine, Table], alone: LlamaRuntime
) -> None:
    engine, table = served
    prompt = engine.runtime.tokenize(PROMPT, False)
    wanted = Alone(alone).text(prompt, SAMPLINGS[kind])
    plain, num_rows = await written(engine, table, prompt, SAMPLINGS[kind], guesses=False)
    assert (plain, num_rows) == (wanted, len(wanted))
    guessed, num_rows = await written(engine, table, prompt, SAMPLINGS[kind], guesses=True)
    assert guessed == wanted
    if kind == "greedy":
        assert num_rows > len(wanted), "no draft was looked at"


@pytest.mark.grpc
async def test_a_text_fits_its_schema(served: tuple[LlamaEngine, Table]) -> None:
    engine, table = served
    sampling = SamplingParams(0.9, seed=3, max_tokens=80, grammar=json_schema_grammar(SCHEMA))
    prompt = engine.runtime.tokenize(PROMPT, False)
    plain, _ = await written(engine, table, prompt, sampling, guesses=False)
    guessed, _ = await written(engine, table, prompt, sampling, guesses=True)
    assert guessed == plain
    spelled = b"".join(engine.runtime.piece(token) for token in plain)
    assert spelled.lstrip().startswith(b"{")


def test_an_acceptance_rule_decides_by_the_row_s_law(served: tuple[LlamaEngine, Table]) -> None:
    engine, _ = served
    sampling = SamplingParams(1.0, seed=1)
    rows = item_of((-1,), np.array([0], np.int32), tokens=[5], outputs=[0], sampling=sampling)
    (logits,) = engine.logits(StepPlan((rows,)))
    likely = int(logits.argmax())
    asked = replace(rows, ask=Ask(Acceptance(AcceptanceRule.TYPICAL), (Offer((likely,)),)))
    result = engine.evaluate(StepPlan((asked,)))
    assert result.choices[0].tolist() == [likely]
    assert np.isinf(result.margins[0]).all()


def test_the_probe_finds_a_row_with_the_logits_of_another(
    served: tuple[LlamaEngine, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = served
    sound = probe(engine)
    assert sound.num_equal == sound.num_rows > 0
    run = LlamaForward.run

    def swapped(forward: LlamaForward, step: PackedStep) -> FloatArray:
        return run(forward, step)[::-1]

    monkeypatch.setattr(LlamaForward, "run", swapped)
    with pytest.raises(UserError, match="cannot be served"):
        probe(engine)
    engine.clear()


def test_what_a_file_says_is_what_edges_hear(served: tuple[LlamaEngine, Table], tmp_path: Path) -> None:
    info = served[0].info
    assert (info.name, info.vocab_size, info.num_slots) == (DRAFT_GGUF.stem, len(served[1]), SLOTS)
    assert info.max_positions == min(SLOTS, served[0].runtime.n_ctx_train)
    plain = write_tiny_gguf(tmp_path / "plain.gguf")
    fields: Fields = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "tokenizer.chat_template": "{{ x }}",
    }
    path = write_copy(tmp_path / "tiny.gguf", plain, fields)
    engine, _, _ = load_engine(str(path), 256, 16, 64, ONE_THREAD)
    with engine.runtime:
        assert engine.info.sampling_defaults.advised == {"temperature": pytest.approx(0.6), "top_k": 20}
        assert engine.info.chat is not None
        assert (engine.info.chat.template, engine.info.chat.eos_token) == ("{{ x }}", END_OF_TEXT)


def test_too_few_slots_for_the_probe_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--slots"):
        load_engine(str(DRAFT_GGUF), 40, 16, 64, ONE_THREAD)
    (tmp_path / "none.gguf").write_bytes(b"none" * 10)
    with pytest.raises(UserError):
        load_engine(str(tmp_path / "none.gguf"), SLOTS, 16, 64, ONE_THREAD)


def test_a_pass_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET", 0.0)  # this machine may be busy
    file = tmp_path / "target.gguf"
    shutil.copy(DRAFT_GGUF, file)
    began = list[str]()

    def load() -> None:
        def note(work: str, share: float | None = None) -> None:
            began.append(work)

        engine, _, found = load_engine(str(file), SLOTS, 64, 256, ONE_THREAD, progress=note, records=tmp_path)
        with engine.runtime:
            assert found.shapes.times
            assert engine.info.row_times

    load()
    assert "checking packed steps" in began
    began.clear()
    load()
    assert "checking packed steps" not in began
    os.utime(file, (1, 1))
    load()
    assert "checking packed steps" in began


@pytest.mark.parametrize("deterministic", [None, True])
def test_texts_and_rows_of_logits_repeat_themselves(deterministic: bool | None) -> None:
    engine, _, _ = load_engine(
        str(DRAFT_GGUF), 2048, 64, 256, LlamaOptions(threads=1, deterministic=deterministic)
    )
    with engine.runtime:
        for each in count_repeats(engine, 5, 24):
            assert each.equal == dict.fromkeys(each.equal, 5)
            assert (each.num_doubtful, each.num_rows > 100) == (0, True)


@pytest.mark.parametrize("slots", [SLOTS, None])
@pytest.mark.parametrize("context", [0, 2**32 - 1])
def test_a_target_with_an_impossible_context_length_is_refused(
    context: int, slots: int | None, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(context=context))
    with pytest.raises(UserError, match=rf"tiny\.gguf.* {context} .*context_length"):
        load_engine(str(path), slots, 64, 256, ONE_THREAD)


def test_texts_that_cannot_repeat_themselves_are_refused_if_they_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_prompts_repeat", lambda runtime, tokens: False)
    with pytest.raises(UserError, match="--deterministic"):
        load_engine(str(DRAFT_GGUF), SLOTS, 64, 256, LlamaOptions(threads=1, deterministic=True))
    engine, _, found = load_engine(str(DRAFT_GGUF), SLOTS, 64, 256, ONE_THREAD)
    with engine.runtime:
        assert not found.shapes.repeats
        assert engine.info.near_tie > 0


# GGUF targets of many architectures: served as llama.cpp alone writes, or refused before they are loaded.


NUM_SLOTS = 2048
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
REPEATING = ["qwen3moe", "deepseek2", "gpt-oss", "gemma2"]
REFUSED: dict[str, tuple[str, dict[str, int]]] = {
    "an encoder": ("t5", {}),
    "a diffusion model": ("dream", {}),
    "an embedding model": ("bert", {"pooling_type": 1}),
    "a ranker": ("qwen3", {"pooling_type": 4}),
    "tokens see later ones": ("llama", {"attention.causal": False}),
    "a recurrent model": ("rwkv7", {}),
    "a hybrid": ("qwen35", {}),
}


@contextmanager
def engine_of(
    path: Path, architecture: str, *, deterministic: bool | None = None, **more: Any
) -> Iterator[LlamaEngine]:
    write_architecture(path, architecture, **more)
    options = LlamaOptions(threads=1, deterministic=deterministic)
    with open_runtime(str(path), NUM_SLOTS, 64, 256, options) as runtime:
        yield LlamaEngine(runtime, NUM_SLOTS, name=architecture)


@pytest.mark.grpc
@pytest.mark.parametrize("architecture", REPEATING)
async def test_an_attention_only_decoder_is_served(tmp_path: Path, architecture: str) -> None:
    # Quantised layers around a router in f32 are the hard case.
    has_experts = ARCHITECTURES[architecture].items() >= EXPERTS.items()
    with engine_of(tmp_path / "tiny.gguf", architecture, quantised=has_experts) as engine:
        found = probe(engine)
        assert found.num_equal == found.num_rows
        (repeats,) = count_repeats(engine, 6, 8, (0.0,))
        assert repeats.holds
        prompt, table = engine.runtime.tokenize(PROMPT, False), tuple(engine.runtime.token_table())
        wanted = Alone(engine.runtime).text(prompt, GREEDY)
        engine.clear()
        text, _ = await written(engine, table, prompt, GREEDY, guesses=True)
        assert text == wanted


@pytest.mark.parametrize(
    ("architecture", "more"),
    [("grok", {}), ("qwen3moe", {"tiled_experts": True})],
    ids=["no flash attention", "kernels by an expert's rows"],
)
def test_a_target_whose_kernels_depend_on_others_does_not_claim_to_repeat_itself(
    tmp_path: Path, architecture: str, more: dict[str, Any]
) -> None:
    with engine_of(tmp_path / "tiny.gguf", architecture, **more) as engine:
        assert not probe(engine).shapes.repeats
        assert engine.info.near_tie > 0


@pytest.mark.parametrize("deterministic", [None, False])
def test_logits_of_other_tokens_than_asked_for_are_refused(
    tmp_path: Path, deterministic: bool | None
) -> None:
    path = tmp_path / "tiny.gguf"
    with engine_of(path, "cogvlm", deterministic=deterministic) as engine, pytest.raises(UserError):
        probe(engine)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_attention_only_decoder_is_refused_before_its_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tried, run = list[bool](), load_trial._try

    def counted(settings: LlamaSettings, weights: bool, patience: float) -> None:
        tried.append(weights)
        run(settings, weights, patience)

    monkeypatch.setattr(load_trial, "_try", counted)
    architecture, more = REFUSED[name]
    path = write_header(tmp_path / "tiny.gguf", architecture, more)
    with pytest.raises(UserError):
        load_engine(str(path), NUM_SLOTS, 64, 256, ONE_THREAD)
    assert tried == [False], "its tokens are read, and no more"
