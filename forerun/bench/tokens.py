"""The prompts of a load as token ids, by the target's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from common.errors import UserError
from forerun.bench.formula import FORMULA, VOCAB_SIZE

FORMULA_PROMPTS, FORMULA_PROMPT = 64, 48
"""Prompts of the formula and the tokens of each."""


def prompt_tokens(target: str, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, no begin token added. The formula has prompts of its own.

    Raises `UserError` if there is no tokenizer, or a prompt is empty.
    """
    if target == FORMULA:
        return [
            [(place * 613 + position * 29) % VOCAB_SIZE for position in range(FORMULA_PROMPT)]
            for place in range(FORMULA_PROMPTS)
        ]
    try:
        encode = _tokenizer(target)
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[verifier]'") from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"the tokenizer of {target} cannot be loaded ({error}); give a model folder"
        ) from error
    found = [encode(text) for text in texts]
    empty = next((text for text, ids in zip(texts, found, strict=True) if not ids), None)
    if empty is not None:
        raise UserError(f"the prompt {empty!r} has no tokens; give other prompts")
    return found


def _tokenizer(target: str) -> Callable[[str], list[int]]:
    """From a folder by the library alone: importing transformers takes seconds."""
    path = Path(target).expanduser() / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer

        words = Tokenizer.from_file(str(path))
        return lambda text: list(words.encode(text, add_special_tokens=False).ids)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=False)
    return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])
