"""The demo pair: a Llama target, its distilled draft and one tokenizer, all trained by this package.

Importing the package costs nothing: the paths below come from pathlib, and torch is imported only by the
modules that train, export or evaluate.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent
"""Directory of this package."""

TARGET_DIR: Final = ROOT / "target"
"""Hugging Face directory of the target model: config, bf16 safetensors and the tokenizer of the pair."""

DRAFT_GGUF: Final = ROOT / "draft" / "draft-q8_0.gguf"
"""Draft model for llama.cpp, Q8_0, with the same tokenizer embedded."""

PROMPTS: Final = ROOT / "prompts.json"
"""List of `{"name", "module", "text"}`: beginnings of modules that the pair never saw."""

__all__ = ["DRAFT_GGUF", "PROMPTS", "ROOT", "TARGET_DIR"]
