"""Drafters of the verifier that are whole models: the target without some layers, or a small model."""

from __future__ import annotations

from collections.abc import Collection

from cloud_verifier.engine.model.transformers_adapter import TargetModel, load_target
from common.errors import UserError
from common.vocabulary import Vocabulary, explain_mismatch
from schemes.drafters.drafter import MOST_LEVELS, Drafted, DraftModel, DraftRows
from schemes.drafters.other_layers import without_layers


class SkippedLayers(DraftModel):
    """Guesses with the target without some of its layers (Draft & Verify: Zhang et al. 2024, arXiv
    2309.08168).

    The other layers read the KV that the target has written of the text, and write that of guessed nodes
    to their slots, which the target's step never reads. The paper skips attention and MLP of a layer apart,
    searches by Bayesian optimisation and ends a draft by its confidence. Here whole layers are skipped,
    `training.layer_search` is greedy, and the scheduler decides how deep a guess goes. Raises `UserError`
    unless the layers are the target's and some are left.
    """

    first_position = 0
    has_own_kv = False

    def __init__(self, target: TargetModel, skipped: Collection[int], depth: int = MOST_LEVELS) -> None:
        if not set(skipped) < set(range(target.num_layers)):
            raise UserError(
                f"--drafter cannot skip the layers {numbered(skipped)}: '{target.name}' has layers 0 to "
                f"{target.num_layers - 1}, and one at least must be left"
            )
        self.depth = depth
        self._model = without_layers(target, skipped)

    def forward(self, rows: DraftRows) -> Drafted:
        return Drafted(self._model.forward(rows.tokens[None], rows.positions[None], rows.outputs))


class EarlyExit(SkippedLayers):
    """Guesses with the target's first layers, then its own norm and head (LayerSkip: Elhoushi et al. 2024,
    arXiv 2404.16710, whose targets are trained for that).

    Raises `UserError` unless the target has as many layers.
    """

    def __init__(self, target: TargetModel, num_layers: int, depth: int = MOST_LEVELS) -> None:
        if not 1 <= num_layers <= target.num_layers:
            raise UserError(
                f"--drafter exit:{num_layers} is not possible: '{target.name}' has {target.num_layers} layers"
            )
        super().__init__(target, range(num_layers, target.num_layers), depth)


class SmallModel(DraftModel):
    """Guesses with another causal LM of the same vocabulary. Raises `UserError` if it has another one."""

    depth = MOST_LEVELS
    first_position = 0
    has_own_kv = True

    def __init__(self, model: TargetModel, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size  # of the target; ids beyond the smaller one are padding

    def forward(self, rows: DraftRows) -> Drafted:
        tokens = rows.tokens.clamp(max=self._model.vocab_size - 1)
        positions = rows.positions.clamp(max=self._model.max_positions - 1)
        logits = self._model.forward(tokens[None], positions[None], rows.outputs)
        return Drafted(logits[:, : self._vocab_size])


def first_layers(source: str, target: TargetModel, _vocabulary: Vocabulary) -> EarlyExit:
    """Return the first K layers of the target for `exit:K`. Raises `UserError` if it has fewer."""
    number = source.partition(":")[2]
    if not number.isdecimal():
        raise UserError(f"--drafter is {source!r}; it must be exit:K with a number of layers K")
    return EarlyExit(target, int(number))


def skipped_layers(source: str, target: TargetModel, _vocabulary: Vocabulary) -> SkippedLayers:
    """Return the target without the layers of `skip:LIST`, where LIST is such as `3,5,8-11`. Raises
    `UserError` for another list, or for layers that the target has not."""
    numbers = list[int]()
    for part in source.partition(":")[2].split(","):
        first, dash, last = part.partition("-")
        if not dash:
            last = first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise UserError(
                f"--drafter is {source!r}; it must be skip:LIST with numbers of layers such as 3,5,8-11; "
                "`forerun heads check --drafter skip` looks for a good list"
            )
        numbers += range(int(first), int(last) + 1)
    if len(set(numbers)) < len(numbers):
        raise UserError(f"--drafter is {source!r}, which names a layer twice; name each once")
    return SkippedLayers(target, numbers)


def numbered(layers: Collection[int]) -> str:
    """Return numbers of layers as `skip:` takes them, such as `3,5,8-11`."""
    runs = list[list[int]]()
    for number in sorted(layers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def load_small_model(source: str, target: TargetModel, vocabulary: Vocabulary) -> SmallModel:
    """Load a model of transformers that has the target's vocabulary. Raises `UserError` if it cannot be
    used."""
    model = load_target(source, device=str(target.device))
    own = Vocabulary(model.token_table())
    if own.fingerprint != vocabulary.fingerprint:
        raise UserError(f"--drafter {source} has another vocabulary: {explain_mismatch(own, vocabulary)}")
    return SmallModel(model, target.vocab_size)
