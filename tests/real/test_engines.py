"""Texts of a published model: those of the engines are those of llama.cpp and of transformers alone."""

from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.llama.llama_engine import LlamaEngine
from common.sampling import SamplingParams
from common.wire.describe import TokenTable
from tests.real.models import SLOTS, Alone
from tests.support.served import written

pytestmark = [pytest.mark.real, pytest.mark.llama, pytest.mark.grpc, pytest.mark.slow]

PROMPTS = (
    "The tide comes in twice a day, and each time",
    "def total(numbers):\n    '''Return the sum of the numbers.'''\n",
)
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=24, ignore_eos=True),
    "sampled": SamplingParams(0.8, top_k=40, top_p=0.9, max_tokens=24, seed=4, ignore_eos=True),
}


@pytest.mark.parametrize("kind", SAMPLINGS)
async def test_texts_of_a_gguf_target_are_llama_cpps_own(
    kind: str, target: tuple[LlamaEngine, TokenTable], alone: Alone
) -> None:
    engine, table = target
    for text in PROMPTS:
        prompt = engine.runtime.tokenize(text, False)
        wanted = alone.text(prompt, SAMPLINGS[kind])
        plain, num_rows = await written(engine, table, prompt, SAMPLINGS[kind], guesses=False)
        assert (plain, num_rows) == (wanted, len(wanted))
        guessed, _ = await written(engine, table, prompt, SAMPLINGS[kind], guesses=True)
        assert guessed == wanted


@pytest.mark.torch
async def test_texts_of_a_torch_target_are_transformers_own(smollm2_folder: Path, alone: Alone) -> None:
    """The weights are those of the GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM

    from cloud_verifier.engine.torch_loading import load_engine

    engine, table = load_engine(str(smollm2_folder), SLOTS, dtype="float32")
    assert table == tuple(alone.runtime.token_table()), "edges with the GGUF file may draft for it"
    plain_model: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    sampling = SAMPLINGS["greedy"]
    for text in PROMPTS[1:]:
        prompt = alone.runtime.tokenize(text, False)
        ids = torch.tensor([prompt])
        length = {"max_new_tokens": sampling.max_tokens, "min_new_tokens": sampling.max_tokens}
        whole = plain_model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **length)
        wanted = whole[0, len(prompt) :].tolist()
        for guesses in (False, True):
            answer, _ = await written(engine, table, prompt, sampling, guesses=guesses)
            assert answer == wanted
