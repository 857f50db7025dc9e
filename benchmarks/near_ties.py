"""How often rounding turns a text: every prompt alone and among all others, and the near ties on the way.

Run `python -m benchmarks.near_ties --dtype bfloat16`. The real scheduler and engine run in this process, one
step after the other. Every text is written alone without drafts, then all together, with guesses of what the
text repeats as drafts. With `--deterministic` no text may differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

import demo_models
from cloud_verifier.core.config import SchedulerConfig
from cloud_verifier.core.effects import Reply
from cloud_verifier.core.margins import BOUNDS
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.exact import ExactEngine
from cloud_verifier.engine.transformers_adapter import load_target
from common.messages import Commit, Open
from common.sampling import SamplingParams
from forerun.prompts import bundled

NUM_SLOTS = 16384


@dataclass(frozen=True, slots=True)
class Result:
    """What one comparison found."""

    texts: int
    tokens: int  # committed when all were together
    differing: int  # texts that were other ones in company
    near_tie: float  # logits: below this a choice could turn
    near_ties: int  # among the tokens
    smallest_margin: float  # logits
    margins: tuple[int, ...]  # tokens by margin, below each of BOUNDS and above


def compare(engine: TorchEngine, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams) -> Result:
    """Each prompt twice, greedily or under its own seed."""
    alone = [texts_of(engine, [prompt], sampling, False)[0][0] for prompt in prompts]
    together, scheduler = texts_of(engine, prompts, sampling, True)
    margins = scheduler.ledger.margins
    return Result(
        texts=len(prompts),
        tokens=margins.num_choices,
        differing=sum(1 for one, other in zip(alone, together, strict=True) if one != other),
        near_tie=margins.near_tie,
        near_ties=margins.num_near_ties,
        smallest_margin=margins.smallest,
        margins=tuple(margins.counts),
    )


def texts_of(
    engine: TorchEngine, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, guess: bool
) -> tuple[list[tuple[int, ...]], VerifyScheduler]:
    """The texts of all prompts, served together."""
    scheduler = VerifyScheduler(engine.info, SchedulerConfig(recall=guess, prefix_cache=False))
    for key, prompt in enumerate(prompts, 1):
        scheduler.on_open(key, Open(prompt, sampling, engine.info.fingerprint), 0.0)
    texts: list[tuple[int, ...]] = [() for _ in prompts]
    now = 0.0
    while (plan := scheduler.next_step(now)) is not None:
        now += 0.01
        scheduler.on_step_done(engine.evaluate(plan), now)
        for effect in scheduler.effects():
            if isinstance(effect, Reply) and isinstance(effect.message, Commit):
                texts[effect.session - 1] += effect.message.tokens
    return texts, scheduler


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="texts that turn in company, and near ties")
    option = parser.add_argument
    option("--target", default=str(demo_models.TARGET_DIR), help="folder of the model (%(default)s)")
    option("--dtype", default="float32", help="float32, bfloat16 or float16 (%(default)s)")
    option("--deterministic", action="store_true", help="the deterministic engine")
    option("--threads", type=int, default=1, help="torch threads (%(default)s)")
    option("--max-tokens", type=int, default=100, help="tokens of each text (%(default)s)")
    option("--temperature", type=float, default=0.0, help="0 is greedy (%(default)s)")
    option("--json", action="store_true", help="print a JSON report")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    model = load_target(given.target, dtype=given.dtype)
    prompts = [tuple(model.tokenize(prompt)) for prompt in bundled()]
    make = ExactEngine if given.deterministic else TorchEngine
    sampling = SamplingParams(
        max_tokens=given.max_tokens, ignore_eos=True, temperature=given.temperature, seed=7
    )
    result = compare(make(model, NUM_SLOTS), prompts, sampling)
    print(json.dumps(asdict(result)) if given.json else _words(result))
    return 0


def _words(result: Result) -> str:
    lines = [
        f"{result.differing} of {result.texts} texts are other ones in company",
        f"{result.near_ties} of {result.tokens} tokens were chosen by less than {result.near_tie:g} logits",
        f"the narrowest choice was by {result.smallest_margin:.2g} logits",
    ]
    below = zip(("", *(f"{bound:g}" for bound in BOUNDS)), result.margins, strict=True)
    return "\n".join([*lines, *(f"  from {low or 'equal':>6}: {count}" for low, count in below)])


if __name__ == "__main__":
    sys.exit(main())
