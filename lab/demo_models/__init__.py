"""The demo pair: a Llama target, its distilled draft and one tokenizer, all trained by this package.

Importing the package costs nothing: torch is imported only by the modules that train, export or evaluate.
"""

from typing import Final

from training.demo_pair import DRAFT_GGUF, FOLDER, PROMPTS, TARGET_DIR

ROOT: Final = FOLDER
"""Directory of this package."""

__all__ = ["DRAFT_GGUF", "PROMPTS", "ROOT", "TARGET_DIR"]
