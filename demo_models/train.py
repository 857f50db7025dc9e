"""Make the demo pair again: `python -m demo_models.train`.

Four stages, each of which can be run alone with `--stage`: the tokenizer (seconds), the target, the draft,
and a refinement of the draft. By default the last three take 34, 18 and 4 minutes, whatever the machine;
`--target-seconds` and so on set other times, `--target-steps` and so on a repeatable number of steps instead.
"""

import argparse
import copy
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from demo_models import ROOT
from demo_models.architecture import CONTEXT_LENGTH, draft_from
from demo_models.batches import TOKENS_PER_STEP, WindowStream, pack
from demo_models.corpus import Split, load_split
from demo_models.gguf_export import read_gguf, write_gguf
from demo_models.prompts import write_prompts
from demo_models.sampling import continue_prefixes
from demo_models.schedule import Budget
from demo_models.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from demo_models.training import distil_draft, train_target

logger = logging.getLogger(__name__)

REFINING_RATE = 0.4
"""Learning rates of the refinement, as a part of those that the draft was trained with."""

OWN_WORDS_REPEATS = 4
"""How often the target's own text stands in the draft's training text: every eighth window or so."""


@dataclass(frozen=True)
class Options:
    """What one call does: `stages` in order, below `output`, from `seed`, each model within its budget."""

    output: Path
    stages: tuple[str, ...]
    seed: int
    target_budget: Budget
    draft_budget: Budget
    refine_budget: Budget
    sampled_rows: int
    sampled_length: int
    f32_gguf: Path | None

    @property
    def target_dir(self) -> Path:
        """Where the target and the tokenizer go."""
        return self.output / "target"

    @property
    def draft_gguf(self) -> Path:
        """Where the quantised draft goes."""
        return self.output / "draft" / "draft-q8_0.gguf"


def make_tokenizer(options: Options, split: Split) -> None:
    """Train the tokenizer, and cut the prompts from the held-out modules."""
    tokenizer = train_tokenizer(module.text for module in split.train)
    save_tokenizer(tokenizer, options.target_dir, CONTEXT_LENGTH)
    write_prompts(split.held_out, options.output / "prompts.json")


def make_target(options: Options, split: Split) -> None:
    """Train the target and write it as bf16 safetensors, at every checkpoint."""
    tokens = training_tokens(options, split)

    def checkpoint(model: LlamaForCausalLM) -> None:
        save_target(model, options.target_dir)

    started_at = time.monotonic()
    _, num_steps = train_target(tokens, options.target_budget, options.seed, checkpoint)
    record(options, "target", num_steps, time.monotonic() - started_at)


def make_draft(options: Options, split: Split) -> None:
    """Distil the draft from the written target and write it as Q8_0 GGUF, at every checkpoint."""
    target = LlamaForCausalLM.from_pretrained(options.target_dir, dtype=torch.float32).eval()
    library = training_tokens(options, split)
    started_at = time.monotonic()
    own_words = continue_prefixes(target, library, options.sampled_rows, options.sampled_length, options.seed)
    logger.info("sampled %d tokens from the target in %.0f s", len(own_words), time.monotonic() - started_at)
    stream = WindowStream(torch.cat((library, own_words.repeat(OWN_WORDS_REPEATS))), options.seed)

    def checkpoint(model: LlamaForCausalLM) -> None:
        write_gguf(model, options.target_dir / "tokenizer.json", options.draft_gguf, quantised=True)

    draft = draft_from(target)
    checkpoint(draft)
    num_steps = distil_draft(draft, target, stream, options.draft_budget, checkpoint)
    record(options, "draft", num_steps, time.monotonic() - started_at)


def refine_draft(options: Options, split: Split) -> None:
    """Go on with the written draft on library text alone, in another order and with smaller steps."""
    target = LlamaForCausalLM.from_pretrained(options.target_dir, dtype=torch.float32).eval()
    stream = WindowStream(training_tokens(options, split), options.seed + 1)
    draft = read_gguf(options.draft_gguf)
    started_at = time.monotonic()

    def checkpoint(model: LlamaForCausalLM) -> None:
        write_gguf(model, options.target_dir / "tokenizer.json", options.draft_gguf, quantised=True)

    num_steps = distil_draft(draft, target, stream, options.refine_budget, checkpoint, rate=REFINING_RATE)
    record(options, "refine", num_steps, time.monotonic() - started_at)


STAGES: dict[str, Callable[[Options, Split], None]] = {
    "tokenizer": make_tokenizer,
    "target": make_target,
    "draft": make_draft,
    "refine": refine_draft,
}


def training_tokens(options: Options, split: Split) -> Tensor:
    """Return the packed tokens of the training modules."""
    return pack(load_tokenizer(options.target_dir), [module.text for module in split.train])


def save_target(model: LlamaForCausalLM, directory: Path) -> None:
    """Write `model` in bf16 to `directory`, file by file, so that a reader never sees half of one."""
    with tempfile.TemporaryDirectory(dir=directory) as fresh:
        copy.deepcopy(model).bfloat16().save_pretrained(fresh)
        for path in sorted(Path(fresh).iterdir()):
            path.chmod(0o644)
            os.replace(path, directory / path.name)


def record(options: Options, stage: str, num_steps: int, elapsed_time: float) -> None:
    """Add what a stage took to training_log.json, so that it can be repeated with `--{stage}-steps`."""
    path = options.output / "training_log.json"
    log = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    log[stage] = {
        "num_steps": num_steps,
        "num_tokens": num_steps * TOKENS_PER_STEP,
        "seconds": round(elapsed_time),
        "num_threads": torch.get_num_threads(),
        "seed": options.seed,
    }
    path.write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")


def parse_options(arguments: list[str] | None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo_models.train", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT, help="directory to write to (default: this package)"
    )
    parser.add_argument("--stage", choices=STAGES, action="append", help="run only this stage (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, window order and sampling")
    parser.add_argument(
        "--target-seconds", type=float, default=2040.0, help="wall-clock time of the target's run"
    )
    parser.add_argument(
        "--draft-seconds", type=float, default=1000.0, help="wall-clock time of the draft's run"
    )
    parser.add_argument("--target-steps", type=int, help="a number of steps in place of the target's time")
    parser.add_argument("--draft-steps", type=int, help="a number of steps in place of the draft's time")
    parser.add_argument(
        "--refine-seconds", type=float, default=240.0, help="wall-clock time of the refinement"
    )
    parser.add_argument(
        "--refine-steps", type=int, help="a number of steps in place of the refinement's time"
    )
    parser.add_argument(
        "--sampled-rows", type=int, default=192, help="texts that the target writes for the draft"
    )
    parser.add_argument("--sampled-length", type=int, default=448, help="tokens in each of those texts")
    parser.add_argument(
        "--f32-gguf", type=Path, help="only write the existing draft, dequantised, to this path"
    )
    given = parser.parse_args(arguments)
    return Options(
        output=given.output,
        stages=tuple(given.stage or STAGES),
        seed=given.seed,
        target_budget=budget(given.target_steps, given.target_seconds),
        draft_budget=budget(given.draft_steps, given.draft_seconds),
        refine_budget=budget(given.refine_steps, given.refine_seconds),
        sampled_rows=given.sampled_rows,
        sampled_length=given.sampled_length,
        f32_gguf=given.f32_gguf,
    )


def budget(num_steps: int | None, seconds: float) -> Budget:
    """Return the budget of one stage; a number of steps goes before a time."""
    return Budget(seconds=seconds) if num_steps is None else Budget(num_steps=num_steps)


def main(arguments: list[str] | None = None) -> int:
    """Run the stages asked for."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    transformers_logging.disable_progress_bar()
    options = parse_options(arguments)
    if options.f32_gguf is not None:
        draft = read_gguf(options.draft_gguf)
        write_gguf(draft, options.target_dir / "tokenizer.json", options.f32_gguf, quantised=False)
        return 0
    split = load_split()
    for stage in options.stages:
        logger.info("stage %s: %d training modules", stage, len(split.train))
        STAGES[stage](options, split)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
