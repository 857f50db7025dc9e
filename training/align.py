"""Implements `forerun align`: trains a draft towards the texts and the choices of its target."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from common.sampling import SamplingParams
from forerun import demo_pair
from forerun.options import JsonOption
from forerun.prompts import bundled
from forerun.terminal import note, table
from training.options import check_out, read_prompts
from training.record import BATCH, write_texts

if TYPE_CHECKING:
    from torch import Tensor

    from cloud_verifier.engine.torch_engine import TorchEngine
    from cloud_verifier.llama.llama_engine import LlamaEngine
    from training.draft_weights import DraftWeights
    from training.lessons import DraftReport, Lesson
    from training.trainer import Checkpoint, Losses, Trainer

DESCRIPTION = """\
Let the target write texts, and train the draft to make the same choices. A draft that the target agrees
with more often makes every text faster, and changes none. The same command goes on where an interrupted one
stopped.

  forerun align --target path/to/target --draft draft.gguf --prompts prompts.json --out aligned.gguf
  forerun edge --draft aligned.gguf ..."""

LOSS_NAMES = ("coupled", "forward-kl", "reverse-kl", "jensen-shannon", "total-variation", "sequence")
"""Names of `training.losses.LOSSES`, which needs torch."""

MOST_ROWS, MOST_STEP = 32, 512  # of a GGUF target's steps
LONGEST_PROMPT = 512  # tokens; of a longer prompt its beginning
HELD_OUT_EVERY = 8
"""Every so many prompts are held out: their texts are only measured."""

LOGITS_PER_PASS = 40_000_000
"""Logits of rows that go through the draft together (160 MB); an update has several passes."""

CHECK_EVERY, PATIENCE = 50, 4
"""Updates between two measurements of the texts held out, and measurements without a better one after which
the training ends."""

BEST = "best."
"""Prefix of the best weights so far in a checkpoint."""

ALL_RATES, LOW_RANK_RATES = (0.004, 0.0006), (0.02, 0.003)
"""Highest learning rates of matrices and of all else."""


@dataclass(frozen=True, kw_only=True)
class AlignOptions(JsonOption):
    """Declares a training. Raises `UserError` before the slow loading."""

    target: str = setting(str(demo_pair.TARGET_DIR), "target: folder, hub id or GGUF file", "PATH")
    draft: Path = setting(demo_pair.DRAFT_GGUF, "draft: GGUF file", "FILE")
    out: Path = setting(REQUIRED, "file for the aligned draft, GGUF", "FILE")
    adapter: Path | None = setting(None, "file for the change alone, a GGUF adapter; needs --rank", "FILE")
    type: str = setting(
        "Q8_0", "type of the aligned draft's weights, as llama.cpp's quantize names it", "TYPE"
    )
    prompts: Path | None = setting(
        None, "file of prompts: a JSON list of texts, or JSON lines (default: bundled ones)", "FILE"
    )
    texts: int = setting(256, "texts that the target writes", "N")
    max_tokens: int = setting(128, "most tokens of each text", "N")
    temperature: float = setting(0.8, "temperature of the texts and of the training, above 0")
    loss: str = setting("coupled", "what an update lowers", choices=LOSS_NAMES)
    rank: int = setting(0, "train products of this rank beside the matrices; 0: train all weights", "N")
    layers: str = setting("", "keep these layers of the draft only, such as 0,3,6 (default: all)", "LIST")
    updates: int = setting(400, "most updates", "N")
    seed: int = setting(0, "seed of the texts and of their order", "N")
    device: str = setting("cpu", "device of torch: cpu, cuda or cuda:N")
    threads: int = setting(0, "threads; 0: torch's and llama.cpp's own choice", "N")

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UserError(f"--temperature is {self.temperature:g}; training needs one above 0, such as 0.8")
        if self.adapter is not None and not self.rank:
            raise UserError("--adapter holds a low-rank change alone; give --rank as well, such as --rank 16")
        if self.adapter is not None and self.layers:
            raise UserError("--adapter belongs to the draft's own file, so it cannot be had with --layers")
        if not self.draft.is_file():
            raise UserError(f"--draft {self.draft} is no file; give the draft's GGUF file")
        check_out(self.out)

    @property
    def kept_layers(self) -> list[int]:
        """Return the layers of `--layers`, [] for all. Raises `UserError`."""
        try:
            return [int(layer) for layer in self.layers.split(",") if layer]
        except ValueError:
            raise UserError(
                f"--layers is {self.layers!r}; numbers with commas were expected, as 0,3,6"
            ) from None


def add_parser(commands: Any) -> None:
    add_command(commands, "align", "train a draft towards its target", _run, AlignOptions, DESCRIPTION)


def _run(options: AlignOptions) -> int:
    import torch

    from training.draft_weights import DraftWeights
    from training.lessons import measure
    from training.trainer import Checkpoint, Trainer

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    draft = DraftWeights(options.draft)
    draft.check_layers(options.kept_layers)
    checkpoint = Checkpoint(options.out.with_name(options.out.name + ".training"), _what(options))
    lessons = _lessons(options, checkpoint)
    held_out = [each for number, each in enumerate(lessons) if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
    taught = [each for number, each in enumerate(lessons) if number % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    before = measure(draft.logits, held_out, options.temperature)
    note(f"before: {before.coupled:.1%} of the target's choices are the draft's")
    if options.kept_layers:
        draft.keep_layers(options.kept_layers)
    if options.rank:
        draft.add_low_rank(options.rank)
    trainer = Trainer(
        {name: weight for name, weight in draft.module.named_parameters() if weight.requires_grad},
        _losses(draft, taught, options),
        [len(lesson.tokens) for lesson in taught],
        options.updates,
        LOW_RANK_RATES if options.rank else ALL_RATES,
        options.seed,
        [name for name, _ in draft.module.named_parameters() if "embed" in name or "lm_head" in name],
    )
    after = _train(draft, trainer, held_out, checkpoint, options)
    draft.write(options.out, options.type)
    if options.adapter is not None:
        draft.write_adapter(options.adapter)
    checkpoint.path.unlink(missing_ok=True)
    report = {"out": str(options.out), "held_out_texts": len(held_out), "updates": trainer.done}
    report |= {"before": asdict(before), "after": asdict(after)}
    print(json.dumps(report) if options.json else _shown(before, after, report))
    return 0


def _what(options: AlignOptions) -> dict[str, object]:
    """Return what makes two trainings different."""
    own = {
        name: value
        for name, value in asdict(options).items()
        if name not in ("json", "threads", "type", "adapter")
    }
    return {**own, "draft_bytes": options.draft.stat().st_size}


def _lessons(options: AlignOptions, checkpoint: Checkpoint) -> list[Lesson]:
    """Let the target write texts behind the prompts, and read them. Its weights are freed afterwards."""
    from training.lessons import read_lesson

    prompts = bundled() if options.prompts is None else read_prompts(options.prompts)
    with _engine(options) as (engine, tokenize):
        longest = min(LONGEST_PROMPT, engine.info.max_positions - options.max_tokens - 1)
        tokens = [tokenize(prompt)[:longest] for prompt in prompts]
        texts = list(checkpoint.texts)
        while len(texts) < options.texts:
            some = [
                tokens[at % len(tokens)] for at in range(len(texts), min(len(texts) + BATCH, options.texts))
            ]
            sampling = SamplingParams(
                options.temperature, seed=options.seed + len(texts), max_tokens=options.max_tokens
            )
            written = write_texts(engine, some, sampling)
            texts += [
                np.array([*prompt, *text], np.int32) for prompt, text in zip(some, written, strict=True)
            ]
            checkpoint.save(texts)
            note(f"the target has written {len(texts)} of {options.texts} texts")
        note(f"the target reads {len(texts)} texts, {sum(map(len, texts))} tokens")
        return [
            read_lesson(engine, text.tolist(), len(tokens[at % len(tokens)]) - 1, options.temperature)
            for at, text in enumerate(texts)
        ]


@contextmanager
def _engine(options: AlignOptions) -> Iterator[tuple[LlamaEngine | TorchEngine, Callable[[str], list[int]]]]:
    """Load the target until the block ends. Yields its engine and its tokenizer."""
    slots = BATCH * (LONGEST_PROMPT + options.max_tokens + 1)
    if options.target.endswith(".gguf"):
        from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine

        llama = LlamaOptions(threads=options.threads, deterministic=False)
        engine, _, _ = load_engine(options.target, slots, MOST_ROWS, MOST_STEP, llama)
        runtime = engine.runtime
        with runtime:
            yield engine, lambda text: [*runtime.begin_ids, *runtime.tokenize(text, False)]
        return
    from cloud_verifier.engine.torch_loading import load_engine as load_torch

    torch_engine, _ = load_torch(options.target, slots, device=options.device)
    yield torch_engine, lambda text: list(torch_engine.model.tokenize(text))


def _losses(draft: DraftWeights, lessons: Sequence[Lesson], options: AlignOptions) -> Losses:
    from training.lessons import LessonBatch
    from training.losses import LOSSES

    loss, vocab = LOSSES[options.loss], draft.module.config.vocab_size
    if options.loss == "sequence":
        lessons = [lesson.as_written() for lesson in lessons]

    def losses(places: Sequence[int], _share: float) -> Iterator[Tensor]:
        taught = sum(len(lessons[place].best) for place in places)
        for group in _passes([lessons[place] for place in places], LOGITS_PER_PASS // vocab):
            target, own = LessonBatch.of(group).pairs(draft.logits, options.temperature)
            yield loss(target, own).sum(dim=0, keepdim=True) / taught

    return losses


def _passes(lessons: Sequence[Lesson], most_rows: int) -> Iterator[list[Lesson]]:
    """Divide lessons among passes of about `most_rows` rows, which are padded to their longest."""
    group: list[Lesson] = []
    for lesson in sorted(lessons, key=lambda each: len(each.tokens)):
        if group and (len(group) + 1) * len(lesson.tokens) > most_rows:
            yield group
            group = []
        group.append(lesson)
    yield group


def _train(
    draft: DraftWeights,
    trainer: Trainer,
    held_out: Sequence[Lesson],
    checkpoint: Checkpoint,
    options: AlignOptions,
) -> DraftReport:
    """Make the updates. Leave the weights that knew the texts held out best, and return what they know."""
    from training.lessons import measure

    best, kept, worse = measure(draft.logits, held_out, options.temperature), _kept(trainer), 0
    if checkpoint.state:
        kept = {name: tensor for name, tensor in checkpoint.state.items() if name.startswith(BEST)}
        trainer.load({name.removeprefix(BEST): tensor for name, tensor in kept.items()})
        best = measure(draft.logits, held_out, options.temperature)
        trainer.restore(checkpoint.state)
        note(f"going on after {trainer.done} of {trainer.num_updates} updates")
    began_at, begun = time.monotonic(), trainer.done
    while trainer.done < trainer.num_updates and worse < PATIENCE:
        number = trainer.step()[0]
        if trainer.done % CHECK_EVERY and trainer.done < trainer.num_updates:
            continue
        report = measure(draft.logits, held_out, options.temperature)
        left = (time.monotonic() - began_at) / (trainer.done - begun) * (trainer.num_updates - trainer.done)
        note(
            f"update {trainer.done} of {trainer.num_updates}: {options.loss} {number:.3f}, "
            f"{report.coupled:.1%} of the target's choices, {left:.0f} s left"
        )
        worse += 1
        if report.coupled > best.coupled:
            best, kept, worse = report, _kept(trainer), 0
        checkpoint.save(state=trainer.state() | kept)
    trainer.load({name.removeprefix(BEST): tensor for name, tensor in kept.items()})
    return best


def _kept(trainer: Trainer) -> dict[str, Tensor]:
    return {f"{BEST}{name}": tensor.clone() for name, tensor in trainer.weights().items()}


def _shown(before: DraftReport, after: DraftReport, report: dict[str, Any]) -> str:
    rows = [
        ("same choice, shared noise", before.coupled, after.coupled),
        ("same likeliest token", before.greedy, after.greedy),
    ]
    rows += [
        (f"among the best {rank}", *pair)
        for rank, pair in enumerate(zip(before.by_rank, after.by_rank, strict=True), 1)
    ]
    rows += [
        (f"{depth} in a row", *pair)
        for depth, pair in enumerate(zip(before.by_depth, after.by_depth, strict=True), 1)
    ]
    shown = table(
        ("on texts held out", "before", "after"), [(name, f"{a:.1%}", f"{b:.1%}") for name, a, b in rows]
    )
    return "\n".join([f"{report['out']}: {report['updates']} updates", *shown])
