"""Locates the demo pair in a clone. The files are not installed, as only demos read these megabytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent.parent / "lab" / "demo_models"

TARGET_DIR: Final = FOLDER / "target"
"""Hugging Face directory of the target model: config, bf16 safetensors and the tokenizer of the pair."""

DRAFT_GGUF: Final = FOLDER / "draft" / "draft-q8_0.gguf"
"""Draft model for llama.cpp, Q8_0, with the same tokenizer embedded."""

HEADS: Final = FOLDER / "heads.safetensors"
"""Heads for the verifier's own drafter, made for this target by `forerun heads train`."""

PROMPTS: Final = FOLDER / "prompts.json"
"""List of `{"name", "text"}`: functions outside the pair's training data, as far as their docstrings."""
