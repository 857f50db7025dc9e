"""Loads the drafter that `--drafter` names."""

from __future__ import annotations

from pathlib import Path

from cloud_verifier.engine.drafting.eagle3 import is_eagle3, load_eagle3
from cloud_verifier.engine.drafting.heads import checkpoint_head, load_heads
from cloud_verifier.engine.drafting.models import EarlyExit, load_small_model
from cloud_verifier.engine.drafting.nouns import DraftModel
from cloud_verifier.engine.model.checkpoint import read_settings
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.model_source import EXIT, MTP
from common.errors import UserError
from common.vocabulary import Vocabulary


def load_draft(source: str, target: TargetModel, vocabulary: Vocabulary) -> DraftModel:
    """Load a file of `forerun heads train`, a folder or hub id of EAGLE-3 heads or of a small model, `mtp`
    or `exit:K`.

    Raises `UserError` if there is none, or if it does not fit the target.
    """
    if source.startswith(f"{EXIT}:"):
        number = source.removeprefix(f"{EXIT}:")
        if not number.isdecimal():
            raise UserError(f"--drafter is {source!r}; it must be {EXIT}:K with a number of layers K")
        return EarlyExit(target, int(number))
    if source == MTP:
        return checkpoint_head(target)
    path = Path(source).expanduser()
    if path.is_file():
        return load_heads(path, target, vocabulary.fingerprint)
    settings = read_settings(source)
    if is_eagle3(settings):
        return load_eagle3(source, settings, target)
    return load_small_model(source, target, vocabulary)
