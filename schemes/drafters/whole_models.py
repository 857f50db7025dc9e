"""Drafters of the verifier that are whole models: the target's first layers, or a small model beside it."""

from __future__ import annotations

from cloud_verifier.engine.model.transformers_adapter import TargetModel, load_target
from common.errors import UserError
from common.vocabulary import Vocabulary, explain_mismatch
from schemes.drafters.drafter import MOST_LEVELS, Drafted, DraftModel, DraftRows
from schemes.drafters.other_layers import with_layers


class EarlyExit(DraftModel):
    """Guesses with the target's first layers, then its own norm and head (LayerSkip: Elhoushi et al. 2024,
    arXiv 2404.16710).

    The target has written the KV of these layers. Raises `UserError` unless the target has as many layers.
    """

    first_position = 0
    has_own_kv = False

    def __init__(self, target: TargetModel, num_layers: int, depth: int = MOST_LEVELS) -> None:
        if not 1 <= num_layers <= target.num_layers:
            raise UserError(
                f"--drafter exit:{num_layers} is not possible: '{target.name}' has {target.num_layers} layers"
            )
        self.depth = depth
        self._model = with_layers(target, target.layers[:num_layers])

    def forward(self, rows: DraftRows) -> Drafted:
        return Drafted(self._model.forward(rows.tokens[None], rows.positions[None], rows.outputs))


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


def load_small_model(source: str, target: TargetModel, vocabulary: Vocabulary) -> SmallModel:
    """Load a model of transformers that has the target's vocabulary. Raises `UserError` if it cannot be
    used."""
    model = load_target(source, device=str(target.device))
    own = Vocabulary(model.token_table())
    if own.fingerprint != vocabulary.fingerprint:
        raise UserError(f"--drafter {source} has another vocabulary: {explain_mismatch(own, vocabulary)}")
    return SmallModel(model, target.vocab_size)
