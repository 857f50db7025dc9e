"""Implements `forerun heads`: trains heads for the verifier's own drafter, and tries drafters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from common.llama.files import hash_of
from common.sampling import SamplingParams
from forerun.terminal import note, table
from training import demo_pair
from training.logged_texts import LogOptions, logged_texts
from training.options import ms
from training.target_texts import LONGEST_PROMPT, TextsOptions, divided, kept_texts, new_texts

if TYPE_CHECKING:
    from cloud_verifier.core.engine_protocol import IntArray
    from cloud_verifier.engine.torch_engine import TorchEngine
    from training.drafter_trial import TrialReport
    from training.head_training import LevelAccuracy
    from training.trainer import Checkpoint, Trainer

DESCRIPTION = """\
Heads are small layers on a target model that guess its next tokens, for `forerun verify --drafter FILE`."""

TRAIN = """\
Let the target write texts, every fourth greedily and the others at temperature 0.8, and train heads to
continue them as the target does. The same command goes on where an interrupted one stopped.

  forerun heads train --model path/to/model --prompts prompts.json --out heads.safetensors
  forerun verify --model path/to/model --drafter heads.safetensors

In place of texts behind prompts, --log takes those that a verifier kept. --follow goes on for good, at the
lowest priority, and a verifier tries what it publishes.

  forerun heads train --model path/to/model --log texts --follow --out folder
  forerun verify --model path/to/model --training-log texts --drafter heads:folder"""

CHECK = """\
Let the target write texts, and the drafter guess before each token. Report how often the guesses are right,
what they cost on this machine, and the milliseconds of a token with trees of each depth.

  forerun heads check --model path/to/model --drafter heads.safetensors --step-floor 30

With `--drafter skip`, first search the layers that the target can best draft without, and then try those."""

SKIP = "skip"
SEARCHED = 8
"""Texts that a search of layers reads again and again; their tokens behind the prompts are `--max-tokens`."""

WARM = 0.8
"""Temperature of the texts that are not greedy, and of measurements under shared noise."""

GREEDY_EVERY = 4
"""Every so many groups of texts are greedy."""

HELD_OUT_EVERY = 12
"""Every so many prompts are held out: their texts are only measured."""

SAVE_EVERY, NOTE_EVERY = 100, 25  # updates


@dataclass(frozen=True, kw_only=True)
class HeadsOptions(TextsOptions):
    """Declares the target."""

    model: str = setting(str(demo_pair.TARGET_DIR), "folder or hub id of the target model", "PATH")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(HeadsOptions, LogOptions):
    """Declares a training. Raises `UserError` before the slow loading."""

    START: ClassVar[str] = "heads"
    SUFFIX: ClassVar[str] = ".safetensors"

    heads: Path | None = setting(
        None, "heads to train further, of their own kind and depth (default: new ones)", "FILE"
    )
    kind: str = setting("recurrent", "kind of heads", choices=("recurrent", "medusa", "exit", "pass"))
    depth: int = setting(
        6, "levels of guesses that they are trained for, exits (exit), or rows below a tip (pass)", "N", low=1
    )
    texts: int = setting(960, "texts that the target writes, or the newest of --log", "N", low=HELD_OUT_EVERY)
    steps: int = setting(1200, "updates of the heads' weights", "N", low=1)
    seed: int = setting(0, "seed of the texts and of their order", "N")

    def __post_init__(self) -> None:
        self.check_log()

    def sampling_of(self, group: int) -> SamplingParams:
        """Return the sampling of a group of texts."""
        temperature = 0.0 if group % GREEDY_EVERY == 0 else WARM
        seed = self.seed * self.texts + group
        return SamplingParams(temperature=temperature, seed=seed, max_tokens=self.max_tokens)


@dataclass(frozen=True, kw_only=True)
class HeadsCheckOptions(HeadsOptions):
    """Declares a trial of a drafter."""

    drafter: str = setting(REQUIRED, "drafter, as for `forerun verify`", "WHAT")
    temperature: float = setting(WARM, "sampling temperature; 0 is greedy", "T")
    step_floor: float = setting(0.0, "least time of a target step, to imitate a larger target", "MS", read=ms)


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "heads", "train and check heads for the verifier's own drafter", description=DESCRIPTION
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_command(actions, "train", "train heads on texts of a target", _train, TrainOptions, TRAIN)
    add_command(actions, "check", "tell what a drafter is worth here", _check, HeadsCheckOptions, CHECK)


# Training --------------------------------------------------------------------------------------------------


def _train(options: TrainOptions) -> int:
    if options.follow:
        from training.following import follow

        return follow(options, trained)
    report = trained(options)
    print(json.dumps(report) if options.json else _trained(report))
    return 0


def trained(options: TrainOptions) -> dict[str, Any]:
    """Train heads, and write them. Return the report. Raises `UserError`."""
    engine = _engine(options)
    from training.trainer import matrix_products_in

    with matrix_products_in("medium"):  # bfloat16, where the processor multiplies it
        return _trained_on(engine, options)


def _trained_on(engine: TorchEngine, options: TrainOptions) -> dict[str, Any]:
    import torch

    from common.vocabulary import Vocabulary
    from schemes.drafters.heads import KINDS, HeadsLabel, read_heads, save_heads
    from training.head_training import RATES, accuracy, digest, head_losses, num_trained, read_texts
    from training.trainer import Checkpoint, Trainer

    target = engine.model
    torch.manual_seed(options.seed)
    target.module.requires_grad_(False)
    if options.heads is None:
        heads = KINDS[options.kind](target, options.depth)
    else:
        heads = read_heads(options.heads, target, Vocabulary(target.token_table()))
    parts = None if options.log is None else _logged(options, engine)
    if parts is None:
        data = options.tokenized(engine.info, target.tokenize)
    else:
        data = [text.tolist() for part in parts for text in part]
    told = {**asdict(options), "json": False, "threads": 0, "device": "", "margin": 0.0}
    told |= {"data": digest(target, data), "heads": options.heads and hash_of(options.heads)}
    checkpoint = Checkpoint(options.out.with_name(options.out.name + ".training"), told)
    if parts is None:
        texts = kept_texts(engine, data, options.texts, options.sampling_of, checkpoint)
        parts = divided(texts, len(data), HELD_OUT_EVERY)
    taught, held_out = (list(read_texts(target, part)) for part in parts)
    before = accuracy(heads, target, held_out, WARM)
    losses = head_losses(heads.requires_grad_(True), target, taught)
    lengths = [len(text.tokens) for text in taught]
    trainer = Trainer(dict(heads.named_parameters()), losses, lengths, options.steps, RATES, options.seed)
    if checkpoint.state:
        trainer.restore(checkpoint.state)
        note(f"going on after {trainer.done} of {options.steps} updates")
    _run_steps(trainer, checkpoint)
    label = HeadsLabel.of(heads.kind, num_trained(heads), target, engine.info.fingerprint)
    save_heads(heads, label, options.out)
    checkpoint.path.unlink(missing_ok=True)
    after = accuracy(heads, target, held_out, WARM)
    report = {"out": str(options.out), "held_out_texts": len(held_out)}
    report |= {"before": _mean(before), "after": _mean(after), "levels": [asdict(level) for level in after]}
    return report


def _logged(options: TrainOptions, engine: TorchEngine) -> tuple[list[IntArray], list[IntArray]]:
    """Return texts of a log, to train on and to measure."""
    taught, held_out = (
        [np.append(text.prompt[-LONGEST_PROMPT:], text.tokens[: options.max_tokens]) for text in part]
        for part in logged_texts(options, engine.info.fingerprint, options.model)
    )
    return taught, held_out


def _mean(levels: Sequence[LevelAccuracy]) -> dict[str, float]:
    """Return the mean over the levels."""
    return {name: fmean(asdict(level)[name] for level in levels) for name in ("plain", "coupled")}


def _run_steps(trainer: Trainer, checkpoint: Checkpoint) -> None:
    from training.head_training import LEVEL_WEIGHT

    for losses, left in trainer.updates():
        if trainer.done % NOTE_EVERY == 0:
            shown = " ".join(f"{loss / LEVEL_WEIGHT**level:.2f}" for level, loss in enumerate(losses))
            note(f"update {trainer.done} of {trainer.num_updates}, nats by level {shown}, {left:.0f} s left")
        if trainer.done % SAVE_EVERY == 0:
            checkpoint.save(state=trainer.state())


def _trained(report: dict[str, Any]) -> str:
    rows = [
        [str(level), f"{each['plain']:.1%}", f"{each['coupled']:.1%}"]
        for level, each in enumerate(report["levels"], 1)
    ]
    shown = table(("level", "greedy", f"temperature {WARM:g}"), rows)
    means = " and ".join(f"{report[when]['coupled']:.1%} {when}" for when in ("before", "after"))
    title = (
        f"{report['out']}: right on {report['held_out_texts']} other texts, where the path above is; {means}"
    )
    return "\n".join([title, *shown])


# Checking --------------------------------------------------------------------------------------------------


def _check(options: HeadsCheckOptions) -> int:
    drafter = _searched(options) if options.drafter == SKIP else options.drafter
    engine = _engine(options, drafter)
    from training.drafter_trial import try_drafter

    sampling = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens)
    prompts = options.tokenized(engine.info, engine.model.tokenize)
    report = try_drafter(engine, prompts, sampling, options.step_floor)
    told = {**asdict(report), "drafter": drafter, "best_depth": report.best_depth}
    print(json.dumps(told) if options.json else _tried(report))
    return 0


def _searched(options: HeadsCheckOptions) -> str:
    """Return the best `skip:LIST` that is found. Raise `UserError` if the target is no faster with any."""
    engine = _engine(options)
    from schemes.drafters.whole_models import numbered
    from training.layer_search import search

    prompts = options.tokenized(engine.info, engine.model.tokenize)[:SEARCHED]
    sampling = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens)
    texts = list(new_texts(engine, prompts, len(prompts), lambda _group: sampling))
    firsts, sets = [len(prompt) - 1 for prompt in prompts], []
    for each in search(engine.model, texts, firsts, options.temperature):
        told = f"{each.same:.1%} of the choices with {each.left:.1%} of the weights, {each.pace:.2f} times"
        note(f"skip:{numbered(each.skipped)}  {told}")
        sets.append(each)
    best = max(sets, key=lambda each: each.pace, default=None)
    if best is None or best.pace <= 1.0:
        raise UserError(f"model '{options.model}' has no layer to spare; take another drafter")
    drafter = f"{SKIP}:{numbered(best.skipped)}"
    note(f"best: {drafter}, at most {best.pace:.2f} times the pace without drafts by shares of weights")
    return drafter


def _tried(report: TrialReport) -> str:
    titles = ("depth", "best right", "any right", "guess ms", "steps a token", "ms a token")
    rows = [
        (
            str(each.level),
            f"{each.best:.1%}",
            f"{each.listed:.1%}",
            f"{each.guess_ms:.2f}",
            f"{each.steps_per_token:.3f}",
            f"{each.ms_per_token:.2f}",
        )
        for each in report.levels
    ]
    steps = f"target steps: {report.step_ms:.2f} ms of one row, {report.tree_step_ms:.2f} ms of {report.rows}"
    verdict = "guesses do not pay here"
    if report.best_depth:
        verdict = (
            f"with depth {report.best_depth} a token takes {report.best.ms_per_token:.2f} ms, "
            f"{report.share:.0%} of the time without guesses"
        )
    return "\n".join([*table(titles, rows), f"{steps}; {verdict}"])


# Both ------------------------------------------------------------------------------------------------------


def _engine(options: HeadsOptions, drafter: str | None = None) -> TorchEngine:
    """Load the target; without a drafter in float32, because heads are trained beside it."""
    from cloud_verifier.engine.torch_loading import load_engine

    options.use_threads()
    dtype = "float32" if drafter is None else "auto"
    engine, _ = load_engine(
        options.model, options.num_slots, dtype=dtype, device=options.device, drafter=drafter
    )
    return engine
