"""GGUF targets: the bundled draft's file, served as a target."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloud_verifier.core.engine_protocol import Ask, FloatArray, Offer, StepPlan
from cloud_verifier.engine.packing import PackedStep, item_of
from cloud_verifier.llama.forward import LlamaForward
from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine, open_runtime
from cloud_verifier.llama.llama_probe import probe
from common.acceptance import Acceptance, AcceptanceRule
from common.errors import UserError
from common.grammar import json_schema_grammar
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from forerun.demo_pair import DRAFT_GGUF
from lab.benchmarks.llama_repeats import count_repeats
from tests.real.models import Alone
from tests.support.served import written

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
    from tests.edge_client.draft.tiny_gguf import END_OF_TEXT, Fields, write_copy, write_tiny_gguf

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
    from cloud_verifier.llama import llama_probe as module

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
    from tests.edge_client.draft.tiny_gguf import TinyShape, write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(context=context))
    with pytest.raises(UserError, match=rf"tiny\.gguf.* {context} .*context_length"):
        load_engine(str(path), slots, 64, 256, ONE_THREAD)


def test_texts_that_cannot_repeat_themselves_are_refused_if_they_must(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cloud_verifier.llama import llama_probe as module

    monkeypatch.setattr(module, "_prompts_repeat", lambda runtime, tokens: False)
    with pytest.raises(UserError, match="--deterministic"):
        load_engine(str(DRAFT_GGUF), SLOTS, 64, 256, LlamaOptions(threads=1, deterministic=True))
    engine, _, found = load_engine(str(DRAFT_GGUF), SLOTS, 64, 256, ONE_THREAD)
    with engine.runtime:
        assert not found.shapes.repeats
        assert engine.info.near_tie > 0
