"""Options and files that recording, training and measuring have in common."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.setting import setting
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.process.paths import find_paths
from simulator.documents import read_text

if TYPE_CHECKING:
    from common.llama.model import LlamaSettings
    from common.llama.runtime import LlamaRuntime

KEYS = ("prompt", "text")
"""Keys of an object's text: HumanEval's `prompt`, our own `text`."""


SAMPLING = "sampling"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Declares the sampling options; the defaults are greedy decoding."""

    max_tokens: int = setting(128, "most tokens of the text", "N", group=SAMPLING)
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy", "T", group=SAMPLING)
    top_k: int = setting(0, "number of likeliest tokens to sample from; 0: all", "K", group=SAMPLING)
    top_p: float = setting(1.0, "total probability of the tokens to sample from", "P", group=SAMPLING)
    min_p: float = setting(0.0, "least probability, as a share of the likeliest's", "P", group=SAMPLING)
    repetition_penalty: float = setting(1.0, "factor against repeated tokens; 1: none", "R", group=SAMPLING)
    presence_penalty: float = setting(0.0, "penalty for each token already in the text", "R", group=SAMPLING)
    frequency_penalty: float = setting(0.0, "penalty for each occurrence in the text", "R", group=SAMPLING)
    seed: int = setting(0, "random seed; the same seed gives the same text", "N", group=SAMPLING)
    ignore_eos: bool = setting(False, "continue after the target's end tokens", group=SAMPLING)

    @property
    def sampling(self) -> SamplingParams:
        """Return the sampling parameters. Raise `UserError` for a value out of range."""
        names = (each.name for each in fields(SamplingOptions))
        return SamplingParams(**{name: getattr(self, name) for name in names})


def ms(value: str) -> float:
    """Convert an option's milliseconds to seconds."""
    return float(value) / 1000.0


def check_out(out: Path) -> None:
    """Raise `UserError` unless a file of this path can be made."""
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"--out is {out}; a file in an existing folder was expected")


def open_draft(settings: LlamaSettings) -> LlamaRuntime:
    """Load the draft model. A child process tries the file first, because llama.cpp may crash on it.

    Raise `UserError` for a file that cannot be loaded.
    """
    from common.llama.load_trial import ModelTrials
    from common.llama.runtime import LlamaRuntime

    ModelTrials(find_paths(os.environ).tried).ensure(settings, weights=True)
    return LlamaRuntime(settings)


# Files of prompts ------------------------------------------------------------------------------------------


def read_prompts(path: Path) -> list[str]:
    """Return the texts of a JSON list or of JSON lines. An entry is a text or an object with one of `KEYS`.

    Raise `UserError` that names the entry, counted from 1.
    """
    entries = _entries(path, read_text("the file of prompts", path))
    if not entries:
        raise UserError(f"{path} is an empty list of prompts; at least one text was expected")
    return [_text_of(f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1)]


def _entries(path: Path, text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        lines = enumerate(text.split("\n"), 1)  # JSON may hold U+2028, which splitlines would cut at
        return [_parsed(f"{path}, line {number}", line) for number, line in lines if line.strip()]
    return content if isinstance(content, list) else [content]


def _parsed(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: neither a JSON list nor JSON lines ({error})") from error


def _text_of(where: str, entry: Any) -> str:
    if isinstance(entry, dict):
        entry = next((entry[key] for key in KEYS if key in entry), None)
    if not isinstance(entry, str) or not entry:
        raise UserError(f"{where}: a text was expected, or an object with a text as {' or '.join(KEYS)}")
    return entry
