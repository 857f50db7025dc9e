"""Implements `forerun align`: trains a draft towards the texts and the choices of its target."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import UserError
from common.sampling import SamplingParams
from forerun.terminal import note, table
from simulator.link_spec import LinkSpec
from simulator.schemes import FORERUN, SERVER_STREAMING
from training import demo_pair
from training.logged_texts import HELD_OUT_EVERY, LogOptions, logged_lessons
from training.record import target_step_ms
from training.target_texts import BATCH, divided, kept_texts, new_texts

if TYPE_CHECKING:
    from torch import Tensor

    from cloud_verifier.core.engine_protocol import IntArray
    from cloud_verifier.engine.torch_engine import TorchEngine
    from cloud_verifier.llama.llama_engine import LlamaEngine
    from training.draft_weights import DraftWeights
    from training.lessons import DraftReport, Lesson, Logits
    from training.parallel import ParallelDraft
    from training.trainer import Checkpoint, Losses, Trainer
    from training.trimming import Trimming

DESCRIPTION = """\
Let the target write texts, and train the draft to make the same choices. A draft that the target agrees
with more often makes every text faster, and changes none. The same command goes on where an interrupted one
stopped.

  forerun align --target path/to/target --draft draft.gguf --prompts prompts.json --out aligned.gguf
  forerun edge --draft aligned.gguf ...

In place of the target, --log takes the texts that a verifier kept. --follow goes on for good.

  forerun align --log texts --follow --draft draft.gguf --out drafts"""

LOSS_NAMES = ("coupled", "forward-kl", "reverse-kl", "jensen-shannon", "total-variation", "sequence")
"""Names of `training.losses.LOSSES`, which needs torch."""

MOST_ROWS, MOST_STEP = 32, 512  # of a GGUF target's steps
LOGITS_PER_PASS = 40_000_000
"""Logits of rows that go through the draft together (160 MB); an update has several passes."""

CHECK_EVERY, PATIENCE = 50, 4
"""Updates between two measurements of the texts held out, and measurements without a better one after which
the training ends."""

EARLY, HARM = (5, 15), 0.02
"""Updates with a measurement besides, and a loss of agreement after which the training goes back to its best
weights and on with lower rates: published models bear less than small ones."""

NEVER = -1e4
"""Logit of a token that a draft lacks."""

MOST_PARALLEL = 16
"""Tokens of one step, at most. Later masks are seldom right, and the edge takes few rows a step."""

BEST = "best."
"""Prefix of the best weights so far in a checkpoint."""

ALL_RATES, LOW_RANK_RATES = (0.0175, 0.003), (0.05, 0.008)
"""Highest learning rates of matrices and of all else, multiplied by the share of the target's choices that
the draft does not make: where it makes 91 %, 0.004 loses 2 points and 0.001 wins 1; where it makes 20 %,
0.015 wins 4 points more than 0.004."""


@dataclass(frozen=True, kw_only=True)
class AlignOptions(LogOptions):
    """Declares a training. Raises `UserError` before the slow loading."""

    START: ClassVar[str] = "draft"
    SUFFIX: ClassVar[str] = ".gguf"

    draft: Path = setting(demo_pair.DRAFT_GGUF, "draft: GGUF file", "FILE")
    temperature: float = setting(0.8, "temperature of the texts and of the training, above 0")
    target: str = setting(str(demo_pair.TARGET_DIR), "target: folder, hub id or GGUF file", "PATH")
    adapter: Path | None = setting(None, "file for the change alone, a GGUF adapter; needs --rank", "FILE")
    type: str = setting(
        "Q8_0", "type of the aligned draft's weights, as llama.cpp's quantize names it", "TYPE"
    )
    loss: str = setting("coupled", "what an update lowers", choices=LOSS_NAMES)
    rank: int = setting(0, "train products of this rank beside the matrices; 0: all weights", "N", low=0)
    on_policy: float = setting(
        0.0, "part of the texts that the draft writes, as it was before, and the target only reads", "SHARE"
    )
    layers: str = setting("", "keep these layers of the draft only, such as 0,3,6 (default: all)", "LIST")
    trim: int = setting(
        0,
        "keep the N tokens that are frequent in texts and prompts, for forerun edge --tokens; 0: all",
        "N",
        low=0,
    )
    boost: Path | None = setting(
        None,
        "draft beside which this one will draft (forerun edge --second-draft): train on what it misses",
        "FIRST",
    )
    parallel: int = setting(
        0, "tokens that the draft says in one step, by masks, for devices with slow steps; 0: one", "K", low=0
    )
    updates: int = setting(400, "most updates; 0: none", "N", low=0)
    rtt: float = setting(60.0, "round trip of the link for which the report tells the pace", "MS", low=0)
    seed: int = setting(0, "seed of the texts and of their order", "N")

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UserError(f"--temperature is {self.temperature:g}; training needs one above 0, such as 0.8")
        if not 0 <= self.on_policy <= 1 - HELD_OUT_EVERY / self.texts:
            raise UserError(
                f"--on-policy is {self.on_policy:g}; it must be at least 0, and leave {HELD_OUT_EVERY} "
                f"of the {self.texts} texts to the target"
            )
        if self.adapter is not None and not self.rank:
            raise UserError("--adapter holds a low-rank change alone; give --rank as well, such as --rank 16")
        if self.adapter is not None and self.layers:
            raise UserError("--adapter belongs to the draft's own file, so it cannot be had with --layers")
        for name, file in (("--draft", self.draft), ("--boost", self.boost)):
            if file is not None and not file.is_file():
                raise UserError(f"{name} {file} is no file; give the draft's GGUF file")
        if self.boost is not None and self.trim:
            raise UserError("drafts side by side need the same tokens, so --boost cannot be had with --trim")
        if self.adapter is not None and self.trim:
            raise UserError("--adapter belongs to the draft's own file, so it cannot be had with --trim")
        if self.parallel and not 2 <= self.parallel <= MOST_PARALLEL:
            raise UserError(f"--parallel is {self.parallel}; it must lie in 2 to {MOST_PARALLEL}, or be 0")
        if self.parallel and (self.adapter is not None or self.boost is not None or self.trim):
            raise UserError(
                "--parallel names masks in the draft's own file and tokens, so it cannot be had with "
                "--adapter, --boost or --trim"
            )
        if self.log is not None and self.on_policy:
            raise UserError("--on-policy needs a target, which reads the draft's texts; leave --log out")
        if self.follow and any((self.adapter, self.layers, self.trim, self.boost, self.parallel)):
            raise UserError(
                "--follow publishes whole drafts and compares them one by one; leave --adapter, --layers, "
                "--trim, --boost and --parallel out"
            )
        self.check_log()

    def sampling_of(self, group: int) -> SamplingParams:
        """Return the sampling of a group of texts."""
        return SamplingParams(self.temperature, seed=self.seed + group * BATCH, max_tokens=self.max_tokens)

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
    if options.follow:
        from training.following import follow

        return follow(options, aligned)
    report = aligned(options)
    print(json.dumps(report) if options.json else _shown(report))
    return 0


def aligned(options: AlignOptions) -> dict[str, Any]:
    """Train a draft, and write it. Return the report of both drafts. Raises `UserError`."""
    import torch

    from training.boosting import Boosting
    from training.draft_weights import DraftWeights, file_type
    from training.lessons import measure
    from training.trainer import Checkpoint, matrix_products_in
    from training.trimming import Trimming

    options.use_threads()
    torch.manual_seed(options.seed)
    file_type(options.type)  # checked
    draft = DraftWeights(options.draft)
    draft.check_layers(options.kept_layers)
    boosting = Boosting.of(options.boost, draft, options.temperature) if options.boost else None
    checkpoint = Checkpoint(options.out.with_name(options.out.name + ".training"), _what(options))
    taught, held_out, target_ms = _lessons(options, checkpoint)
    with matrix_products_in("medium"):  # bfloat16, where the processor multiplies it
        before = measure(draft.logits, held_out, options.temperature)
        note(f"before: {before.coupled:.1%} of the target's choices are the draft's")
        start, checked = before, held_out
        if options.kept_layers:
            draft.keep_layers(options.kept_layers)
        if boosting:
            taught, checked = boosting.weighted(taught), boosting.weighted(held_out)
        masks = _parallel(draft, taught, options) if options.parallel else None

        def measured() -> DraftReport:
            report = measure(draft.logits, checked, options.temperature)
            return report if masks is None else masks.added(report, checked)

        if options.kept_layers or boosting or masks:
            start = measured()
        if options.rank:
            draft.add_low_rank(options.rank)
        trimming = Trimming(options.draft, _read(taught), options.trim) if options.trim else None
        trainer = _trainer(draft, _losses(draft, taught, options, masks), taught, start, options)
        after = _train(measured, trainer, start, checkpoint, options) if options.updates else start
        if trimming is not None:
            after = measure(_trimmed(draft.logits, trimming.kept), held_out, options.temperature)
        if boosting:
            after = measure(draft.logits, held_out, options.temperature)
        if masks:
            after = masks.with_texts(after, held_out)
        both = boosting.measured(draft.logits, held_out) if boosting else None
    report: dict[str, Any] = {"out": str(options.out), "held_out_texts": len(held_out)}
    report |= {"updates": trainer.done, "rtt_ms": options.rtt, "target_step_ms": target_ms}
    if trimming is not None:
        report |= {"tokens": len(trimming.kept), "outside": trimming.outside(_counts(held_out))}
    _write(draft, masks, trimming, options)
    checkpoint.path.unlink(missing_ok=True)
    report["before"] = _figures(before, [options.draft], target_ms, options)
    report["after"] = _figures(after, [options.out], target_ms, options)
    if both and options.boost:
        report["both"] = _figures(both[0], [options.boost, options.out], target_ms, options) | asdict(both[1])
    return report


def _figures(
    measured: DraftReport, files: Sequence[Path], target_ms: Mapping[int, float], options: AlignOptions
) -> dict[str, Any]:
    """Return what drafts that compute one after the other are worth, with the pace that they give."""
    from training.predicted import draft_times, predicted_pace

    times = [draft_times(file, options.threads) for file in files]
    draft_ms = {rows: sum(each[rows] for each in times) for rows in times[0]}
    link = LinkSpec(options.rtt / 1e3)
    said = measured.texts, draft_ms, target_ms, link, options.temperature
    ms_per_token = predicted_pace(*said, measured.masked)
    return measured.figures | {"draft_step_ms": draft_ms, "ms_per_token": ms_per_token}


def _trainer(
    draft: DraftWeights,
    losses: Losses,
    lessons: Sequence[Lesson],
    start: DraftReport,
    options: AlignOptions,
) -> Trainer:
    """Return the trainer of a draft that knows what `start` tells."""
    from training.trainer import Trainer

    rates = LOW_RANK_RATES if options.rank else ALL_RATES
    return Trainer(
        {name: weight for name, weight in draft.module.named_parameters() if weight.requires_grad},
        losses,
        [len(lesson.tokens) for lesson in lessons],
        options.updates,
        (rates[0] * (1.0 - start.known), rates[1] * (1.0 - start.known)),
        options.seed,
        [name for name, _ in draft.module.named_parameters() if "embed" in name or "lm_head" in name],
    )


def _parallel(draft: DraftWeights, lessons: Sequence[Lesson], options: AlignOptions) -> ParallelDraft:
    from training.parallel import ParallelDraft, choose_masks

    masks = choose_masks(options.draft, options.parallel - 1, _read(lessons))
    return ParallelDraft(draft, masks, options.temperature, options.seed)


def _read(lessons: Sequence[Lesson]) -> Counter[int]:
    """Return how often each token is in prompts and texts."""
    return Counter(token for lesson in lessons for token in lesson.tokens.tolist())


def _counts(lessons: Sequence[Lesson]) -> Counter[int]:
    """Return how often the target wrote each token."""
    return Counter(token for lesson in lessons for token in lesson.tokens[lesson.first + 1 :].tolist())


def _trimmed(logits: Logits, kept: Sequence[int]) -> Logits:
    """Return a draft that proposes the tokens `kept` alone."""

    import torch

    places = torch.tensor(kept)

    def trimmed(tokens: Tensor, rows: Tensor) -> Tensor:
        whole = logits(tokens, rows)
        return torch.full_like(whole, NEVER).index_copy(-1, places, whole[..., places])

    return trimmed


def _write(
    draft: DraftWeights, masks: ParallelDraft | None, trimming: Trimming | None, options: AlignOptions
) -> None:
    """Write the files of a draft that was trained."""
    if trimming is None:
        draft.write(options.out, options.type, masks.fields if masks else {})
    else:
        _write_trimmed(draft, trimming, options)
    if options.adapter is not None:
        draft.write_adapter(options.adapter)


def _write_trimmed(draft: DraftWeights, trimming: Trimming, options: AlignOptions) -> None:
    """Write the trained draft, or its own file if nothing was changed, without the rare tokens."""
    with TemporaryDirectory(dir=options.out.parent) as folder:
        whole, part = options.draft, Path(folder) / "part.gguf"
        if options.updates or options.layers:
            draft.write(whole := Path(folder) / "whole.gguf", options.type)
        trimming.write(whole, part)
        part.replace(options.out)


def _what(options: AlignOptions) -> dict[str, object]:
    """Return what makes two trainings different."""
    own = {
        name: value
        for name, value in asdict(options).items()
        if name not in ("json", "threads", "type", "adapter", "rtt")
    }
    return {**own, "draft_bytes": options.draft.stat().st_size}


def _lessons(
    options: AlignOptions, checkpoint: Checkpoint
) -> tuple[list[Lesson], list[Lesson], dict[int, float]]:
    """Let the target write texts behind the prompts, and read them: to train on, and to measure. Its weights
    are freed afterwards. Return the milliseconds of its steps by their rows, too. Or take all from a log."""
    if options.log is not None:
        return logged_lessons(options, options.draft, options.temperature)
    from training.lessons import Lesson, read_lesson
    from training.trainer import matrix_products_in

    def lessons_of(texts: Sequence[IntArray]) -> list[Lesson]:
        begins = [len(prompts[at % len(prompts)]) - 1 for at in range(len(texts))]
        pairs = zip(texts, begins, strict=True)
        return [read_lesson(engine, text.tolist(), begin, options.temperature) for text, begin in pairs]

    lessons_drafted = list[Lesson]()
    num_drafted = round(options.texts * options.on_policy)
    with _engine(options.target, options) as (engine, tokenize), matrix_products_in("medium"):
        prompts = options.tokenized(engine.info, tokenize)
        written = kept_texts(engine, prompts, options.texts - num_drafted, options.sampling_of, checkpoint)
        lessons = lessons_of(written)
        if num_drafted:
            with _engine(str(options.draft), options) as (drafting, _):
                drafted = list(new_texts(drafting, prompts, num_drafted, options.sampling_of))
            lessons_drafted = lessons_of(drafted)
        step_ms = {rows: time * 1e3 for rows, time in engine.info.row_times}
        step_ms = step_ms or target_step_ms(engine, prompts[0], SamplingParams())
    taught, held_out = divided(lessons, len(prompts), HELD_OUT_EVERY)
    taught += divided(lessons_drafted, len(prompts), HELD_OUT_EVERY)[0]  # only the target's own are measured
    return taught, held_out, step_ms


@contextmanager
def _engine(
    model: str, options: AlignOptions
) -> Iterator[tuple[LlamaEngine | TorchEngine, Callable[[str], list[int]]]]:
    """Load a model until the block ends. Yields its engine and its tokenizer."""
    if model.endswith(".gguf"):
        from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine

        llama = LlamaOptions(threads=options.threads, deterministic=False)
        engine, _, _ = load_engine(model, options.num_slots, MOST_ROWS, MOST_STEP, llama)
        runtime = engine.runtime
        with runtime:
            yield engine, lambda text: [*runtime.begin_ids, *runtime.tokenize(text, options.chat)]
        return
    from cloud_verifier.engine.torch_loading import load_engine as load_torch

    torch_engine, _ = load_torch(model, options.num_slots, device=options.device)
    yield torch_engine, lambda text: list(torch_engine.model.tokenize(text))


def _losses(
    draft: DraftWeights,
    lessons: Sequence[Lesson],
    options: AlignOptions,
    masks: ParallelDraft | None = None,
) -> Losses:
    from training.lessons import LessonBatch, passes
    from training.losses import LOSSES

    loss, vocab = LOSSES[options.loss], draft.module.config.vocab_size
    if options.loss == "sequence":
        lessons = [lesson.as_written() for lesson in lessons]
    if masks is not None:
        return masks.losses(lessons, loss, LOGITS_PER_PASS // vocab // options.parallel)

    def losses(places: Sequence[int], _share: float) -> Iterator[Tensor]:
        taught = sum(len(lessons[place].best) for place in places)
        for group in passes([lessons[place] for place in places], LOGITS_PER_PASS // vocab):
            batch = LessonBatch.of(group)
            losses = loss(*batch.pairs(draft.logits, options.temperature)) * batch.weights
            yield losses.sum(dim=0, keepdim=True) / taught

    return losses


def _train(
    measured: Callable[[], DraftReport],
    trainer: Trainer,
    best: DraftReport,
    checkpoint: Checkpoint,
    options: AlignOptions,
) -> DraftReport:
    """Make the updates. Leave the weights that knew the texts held out best, and return what they know, which
    is `best` before any update. `measured` tells what the present weights know."""
    kept, worse = _kept(trainer), 0
    if checkpoint.state:
        state = checkpoint.state.items()
        kept = {name.removeprefix(BEST): tensor for name, tensor in state if name.startswith(BEST)}
        trainer.load(kept)
        best = measured()
        trainer.restore(checkpoint.state)
        note(f"going on after {trainer.done} of {trainer.num_updates} updates")
    for numbers, left in trainer.updates():
        if trainer.done % CHECK_EVERY and trainer.done not in (*EARLY, trainer.num_updates):
            continue
        report = measured()
        shares = ", ".join(f"{share:.1%}" for share in (report.coupled, *report.by_mask))
        note(
            f"update {trainer.done} of {trainer.num_updates}: {options.loss} {numbers[0]:.3f}, "
            f"{shares} of the target's choices, {left:.0f} s left"
        )
        worse += trainer.done not in EARLY
        if report.known > best.known:
            best, kept, worse = report, _kept(trainer), 0
        elif report.known < best.known - HARM:
            note("that did harm: going back to the best weights, with a quarter of the rates")
            trainer.go_back(kept)
            worse = 0
        checkpoint.save(state=trainer.state() | {f"{BEST}{name}": tensor for name, tensor in kept.items()})
        if worse == PATIENCE:
            break
    trainer.load(kept)
    return best


def _kept(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights().items()}


def _shown(report: dict[str, Any]) -> str:
    before, after = report["before"], report["after"]
    shares = [("same choice, shared noise", before["coupled"], after["coupled"])]
    shares += [("same likeliest token", before["greedy"], after["greedy"])]
    for words, name in (("among the best {}", "by_rank"), ("{} in a row", "by_depth")):
        pairs = zip(before[name], after[name], strict=True)
        shares += [(words.format(number), *pair) for number, pair in enumerate(pairs, 1)]
    rows = [(name, f"{a:.1%}", f"{b:.1%}") for name, a, b in shares]
    rows += [(f"same choice, mask {mask}", "", f"{b:.1%}") for mask, b in enumerate(after["by_mask"], 1)]
    was, now = before["draft_step_ms"][1], after["draft_step_ms"][1]
    rows += [("draft step, ms", f"{was:.2f}", f"{now:.2f}")]
    for name, words in ((FORERUN, "predicted"), (SERVER_STREAMING, "streaming")):
        was, now = before["ms_per_token"][name], after["ms_per_token"][name]
        rows += [(f"{words} at {report['rtt_ms']:g} ms, ms a token", f"{was:.1f}", f"{now:.1f}")]
    shown = table(("on texts held out", "before", "after"), rows)
    heading = f"{report['out']}: {report['updates']} updates"
    if "tokens" in report:
        heading += (
            f", {report['tokens']} tokens, without {report['outside']:.2%} of those that the target writes"
        )
    if both := report.get("both"):
        both_rows = [(name, f"{both[name]:.1%}") for name in ("first", "second", "either")]
        both_rows += [("both as one draft", f"{both['coupled']:.1%}")]
        both_rows += [("both, predicted ms a token", f"{both['ms_per_token'][FORERUN]:.1f}")]
        shown += ["", *table(("beside the first draft", "same choice"), both_rows)]
    return "\n".join([heading, *shown])
