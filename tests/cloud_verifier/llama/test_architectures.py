"""GGUF targets of many architectures: served as llama.cpp alone writes, or refused before they are loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.llama.llama_engine import LlamaEngine
from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine, open_runtime
from cloud_verifier.llama.llama_probe import probe
from common.errors import UserError
from common.llama import load_trial
from common.llama.model import LlamaSettings
from common.sampling import SamplingParams
from lab.benchmarks.llama_repeats import count_repeats
from tests.cloud_verifier.llama.test_engine import PROMPT
from tests.real.models import Alone
from tests.support.served import written

pytestmark = [pytest.mark.llama]

SLOTS = 2048
ONE_THREAD = LlamaOptions(threads=1)
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
    from tests.edge_client.draft.tiny_architectures import write_architecture

    write_architecture(path, architecture, **more)
    options = LlamaOptions(threads=1, deterministic=deterministic)
    with open_runtime(str(path), SLOTS, 64, 256, options) as runtime:
        yield LlamaEngine(runtime, SLOTS, name=architecture)


@pytest.mark.grpc
@pytest.mark.parametrize("architecture", REPEATING)
async def test_an_attention_only_decoder_is_served(tmp_path: Path, architecture: str) -> None:
    from tests.edge_client.draft.tiny_architectures import ARCHITECTURES, EXPERTS

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
    from tests.edge_client.draft.tiny_architectures import write_header

    tried, run = list[bool](), load_trial._try

    def counted(settings: LlamaSettings, weights: bool, patience: float) -> None:
        tried.append(weights)
        run(settings, weights, patience)

    monkeypatch.setattr(load_trial, "_try", counted)
    architecture, more = REFUSED[name]
    path = write_header(tmp_path / "tiny.gguf", architecture, more)
    with pytest.raises(UserError):
        load_engine(str(path), SLOTS, 64, 256, ONE_THREAD)
    assert tried == [False], "its tokens are read, and no more"
