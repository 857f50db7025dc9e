"""Make the demo pair again: `python -m lab.demo_models.train`.

Four stages, each of which can be run alone with `--stage`: the tokenizer (a minute), the target, the draft,
and heads for the verifier's own drafter (a quarter of an hour). By default target and draft take 115 and 7
minutes, whatever the machine; `--target-seconds` and `--draft-seconds` set other times, `--target-steps` and
`--draft-steps` a repeatable number of steps instead.
"""

import argparse
import copy
import json
import logging
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from forerun.cli import main as run_forerun
from lab.demo_models import ROOT
from lab.demo_models.architecture import CONTEXT_LENGTH, draft_from, load_target
from lab.demo_models.corpus import (
    Modules,
    bundled_prompts,
    load_split,
    plain,
    trained_function,
    training_texts,
)
from lab.demo_models.gguf_export import read_gguf, write_gguf
from lab.demo_models.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from lab.demo_models.training import (
    TOKENS_PER_STEP,
    Packed,
    Progress,
    distil_draft,
    pack,
    train_target,
)

logger = logging.getLogger(__name__)

TOKENIZER_TEXTS = 10_000
"""Texts that the tokenizer is trained on; more change little."""

HEADS_PROMPTS = 960
"""Prompts of the texts that heads learn from: one each."""

SECONDS = {"target": 6900.0, "draft": 420.0}
"""Wall-clock time of each stage that trains a model, if the command line says nothing else."""


class Training:
    """One call of the command: its options and the training text."""

    def __init__(self, options: argparse.Namespace, library: Modules) -> None:
        self.options = options
        self.texts = training_texts(library, options.documents, options.seed)
        self.output: Path = options.output
        self.target_dir = self.output / "target"
        self.draft_gguf = self.output / "draft" / "draft-q8_0.gguf"
        self.heads = self.output / "heads.safetensors"

    def make_tokenizer(self) -> None:
        """Train the tokenizer, and draw the prompts."""
        save_tokenizer(
            train_tokenizer(map(plain, self.texts[:TOKENIZER_TEXTS])), self.target_dir, CONTEXT_LENGTH
        )
        prompts = json.dumps(bundled_prompts(), indent=2) + "\n"
        (self.output / "prompts.json").write_text(prompts, encoding="utf-8")

    def make_target(self) -> None:
        """Train the target and write it as bf16 safetensors, at every checkpoint."""
        packed, progress = self.packed(), self.progress("target")
        train_target(packed, progress, self.options.seed, self.save_target)
        self.record("target", progress, progress.elapsed_time)

    def make_draft(self) -> None:
        """Distil the draft from the written target and write it as Q8_0 GGUF, at every checkpoint."""
        target = load_target(self.target_dir)
        draft, progress = draft_from(target), self.progress("draft")
        distil_draft(draft, target, self.packed(), progress, self.options.seed + 1, self.save_draft)
        self.record("draft", progress, progress.elapsed_time)

    def make_heads(self) -> None:
        """Train heads on texts of the written target, behind prompts of the kind that it was trained on."""
        rng = random.Random(self.options.seed + 2)
        prompts = [trained_function(rng)[0] for _ in range(HEADS_PROMPTS)]
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(prompts, file)
            file.flush()
            paths = ["--model", str(self.target_dir), "--prompts", file.name, "--out", str(self.heads)]
            if run_forerun(["heads", "train", *paths, "--seed", str(self.options.seed)]):
                raise SystemExit(1)

    def packed(self) -> Packed:
        """Return the training text, packed."""
        return pack(load_tokenizer(self.target_dir), self.texts)

    def progress(self, stage: str) -> Progress:
        """Begin a stage that trains a model; a number of steps goes before a time."""
        options = vars(self.options)
        return Progress(options[f"{stage}_steps"], options[f"{stage}_seconds"])

    def save_target(self, model: LlamaForCausalLM) -> None:
        """Write `model` in bf16, file by file, so that a reader never sees half of one."""
        with tempfile.TemporaryDirectory(dir=self.target_dir) as fresh:
            copy.deepcopy(model).bfloat16().save_pretrained(fresh)
            for path in sorted(Path(fresh).iterdir()):
                path.chmod(0o644)
                os.replace(path, self.target_dir / path.name)

    def save_draft(
        self, model: LlamaForCausalLM, path: Path | None = None, *, quantised: bool = True
    ) -> None:
        """Write `model` with the pair's tokenizer as GGUF."""
        write_gguf(model, self.target_dir / "tokenizer.json", path or self.draft_gguf, quantised=quantised)

    def record(self, stage: str, progress: Progress, elapsed_time: float) -> None:
        """Add what a stage took to training_log.json, so that it can be repeated with `--{stage}-steps`."""
        path = self.output / "training_log.json"
        log = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        log[stage] = {
            "num_steps": progress.num_steps,
            "num_tokens": progress.num_steps * TOKENS_PER_STEP,
            "seconds": round(elapsed_time),
            "num_threads": torch.get_num_threads(),
            "seed": self.options.seed,
        }
        path.write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")


STAGES: dict[str, Callable[[Training], None]] = {
    "tokenizer": Training.make_tokenizer,
    "target": Training.make_target,
    "draft": Training.make_draft,
    "heads": Training.make_heads,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    program = argparse.ArgumentParser(prog="python -m lab.demo_models.train", description=__doc__)
    add = program.add_argument
    add("--output", type=Path, default=ROOT, help="directory to write to (default: this package)")
    add("--stage", choices=STAGES, action="append", help="run only this stage (default: all)")
    add("--seed", type=int, default=0, help="seed of weights, window order and sampling (default: 0)")
    for stage, seconds in SECONDS.items():
        add(
            f"--{stage}-seconds",
            type=float,
            default=seconds,
            help=f"wall-clock time (default: {seconds:.0f})",
        )
        add(f"--{stage}-steps", type=int, help=f"number of steps instead of --{stage}-seconds")
    add("--documents", type=int, default=80_000, help="number of generated documents (default: 80000)")
    add("--f32-gguf", type=Path, help="only write the existing draft, dequantised, to this path")
    return program


def main(arguments: list[str] | None = None) -> int:
    """Run the stages asked for."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    transformers_logging.disable_progress_bar()
    options = parser().parse_args(arguments)
    training = Training(options, load_split()[0])
    if options.f32_gguf is not None:
        training.save_draft(read_gguf(training.draft_gguf), options.f32_gguf, quantised=False)
        return 0
    for stage in options.stage or STAGES:
        logger.info("stage %s: %d texts", stage, len(training.texts))
        STAGES[stage](training)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
