"""Measure the pair as it ships on functions it never saw: `python -m lab.demo_models.evaluate` prints JSON.

The target completes held-out prompts. The doctests of its greedy texts are run, and the draft's coupled
acceptance is measured on the same texts. Both run in fp32, the target from its bf16 weights, the draft from
its dequantised Q8_0 weights.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from common.noise import gumbel
from lab.demo_models import DRAFT_GGUF, ROOT
from lab.demo_models.architecture import END_OF_TEXT_ID, load_target
from lab.demo_models.corpus import held_out_functions
from lab.demo_models.gguf_export import read_gguf
from lab.demo_models.tokenizer import load_tokenizer
from training.doctests import Verdict, run_doctests

TEMPERATURES = (0.0, 0.8)
EVALUATION_SEED = 2
"""Of the held-out functions; those of `prompts.json` are drawn with another."""

MOST_TOKENS = 160
"""Of a text that the target writes."""


@dataclass(frozen=True)
class Written:
    """A text of the target: the prompt's tokens and those added, under the noise of `seed`."""

    prompt: list[int]
    added: list[int]
    temperature: float
    seed: int


@torch.no_grad()
def write(target: LlamaForCausalLM, prompt: list[int], temperature: float, seed: int) -> Written:
    """Let the target continue `prompt` until its end-of-text token, or for `MOST_TOKENS`."""
    step, cache, added = torch.tensor([prompt]), None, list[int]()
    while len(added) < MOST_TOKENS and added[-1:] != [END_OF_TEXT_ID]:
        result = target(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        added.append(choice(result.logits[0, -1], temperature, seed, len(prompt) + len(added)))
        step = torch.tensor([[added[-1]]])
    return Written(prompt, added, temperature, seed)


def choice(logits: Tensor, temperature: float, seed: int, position: int) -> int:
    """Return the token that a model chooses at `position` under the noise of `seed`."""
    if not temperature:
        return int(logits.argmax())
    noise = gumbel(seed, position, np.arange(len(logits)))
    return int(np.argmax(logits.double().numpy() / temperature + noise))


@torch.no_grad()
def accepted(draft: LlamaForCausalLM, text: Written) -> list[bool]:
    """Return for each token that the target added whether the draft chooses it too, under the same noise."""
    begin = len(text.prompt)
    logits = draft(input_ids=torch.tensor([text.prompt + text.added]), use_cache=False).logits[0]
    return [
        choice(logits[position - 1], text.temperature, text.seed, position) == token
        for position, token in enumerate(text.added, begin)
    ]


@dataclass(frozen=True)
class FunctionFigures:
    """`passed`: functions of `num_functions` that do what their docstrings show, greedy. `acceptance`: the
    draft's coupled acceptance by the temperature of the target's texts."""

    num_functions: int
    passed: int
    acceptance: dict[str, float]


def measure_functions(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, tokenizer: Tokenizer, prompts: Sequence[str]
) -> FunctionFigures:
    """Let the target complete `prompts` at `TEMPERATURES`, run the greedy texts, and ask the draft."""
    acceptance: dict[str, float] = {}
    passed = 0
    for temperature in TEMPERATURES:
        ids = [tokenizer.encode(prompt).ids for prompt in prompts]
        texts = [write(target, tokens, temperature, seed) for seed, tokens in enumerate(ids)]
        if not temperature:
            passed = sum(map(passes, prompts, (tokenizer.decode(text.added) for text in texts)))
        marks = [mark for text in texts for mark in accepted(draft, text)]
        acceptance[str(temperature)] = round(sum(marks) / len(marks), 4)
    return FunctionFigures(len(prompts), passed, acceptance)


def passes(prompt: str, completion: str) -> bool:
    """Return whether all functions of a text pass their doctests."""
    outcomes = run_doctests(prompt + completion)
    return bool(outcomes) and all(outcome.verdict is Verdict.PASSED for outcome in outcomes)


def main(arguments: list[str] | None = None) -> int:
    """Evaluate the committed pair on held-out functions, and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m lab.demo_models.evaluate", description=__doc__)
    parser.add_argument("--functions", type=int, default=100, help="held-out functions (default: 100)")
    parser.add_argument(
        "--directory", type=Path, default=ROOT, help="where the pair is (default: this package)"
    )
    options = parser.parse_args(arguments)
    target_dir = options.directory / "target"
    target, draft = load_target(target_dir), read_gguf(options.directory / "draft" / DRAFT_GGUF.name)
    tokenizer = load_tokenizer(target_dir)
    prompts = [prompt for _, prompt in islice(held_out_functions(EVALUATION_SEED), options.functions)]
    print(json.dumps(asdict(measure_functions(target, draft, tokenizer, prompts)), indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
