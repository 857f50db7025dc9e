"""Implements `forerun models` and `forerun pull`: pairs of models that fit, and their files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import ForerunError, UserError
from common.llama.files import HUB, find_model, gguf_files, is_gguf, is_remote
from edge_client.process.paths import find_paths
from forerun.options import JsonOption
from forerun.terminal import table

MODELS = """\
Show pairs of a target and a draft by what the server has room for, with the commands that serve them. The
draft has the target's tokens and runs on a laptop or a Jetson.

  forerun models
  forerun models --drafts-for qwen2.5-coder-7b-instruct-q4_k_m.gguf

If --drafts-for names a file, its tokens are compared with those of the smaller GGUF files beside it and of
those that were fetched before."""

PULL = """\
Show the GGUF files of a repository on the Hugging Face hub, or fetch one of them and print its place.
`serve` and `edge` fetch a file themselves when they first need it.

  forerun pull Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF
  forerun pull hf://Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"""

GB = 1e9


@dataclass(frozen=True, slots=True)
class KnownPair:
    """Holds a target and a draft with the same tokens."""

    room: str
    target: str
    target_gb: float
    draft: str
    draft_gb: float
    form: str
    licence: str
    measured: str = "not measured here"
    is_local: bool = False  # both on this machine


def _qwen_coder(room: str, size: str, target_gb: float, measured: str = "not measured here") -> KnownPair:
    """Return a pair of Qwen2.5-Coder, whose 0.5B drafts for all larger ones but the 3B (another licence)."""

    def file(of: str) -> str:
        return f"{HUB}Qwen/Qwen2.5-Coder-{of}-Instruct-GGUF/qwen2.5-coder-{of.lower()}-instruct-q4_k_m.gguf"

    return KnownPair(room, file(size), target_gb, file("0.5B"), 0.49, "Q4_K_M", "Apache-2.0", measured)


PAIRS = (
    _qwen_coder("processor", "1.5B", 1.12, "8.9 ms a token, streaming 30.1 (60 ms away, steps of 30 ms)"),
    replace(_qwen_coder("Jetson of 16 GB, with the draft", "7B", 4.68), is_local=True),
    _qwen_coder("GPU of 8 GB", "7B", 4.68),
    _qwen_coder("GPU of 16 GB", "14B", 8.99),
    _qwen_coder("GPU of 24 GB", "32B", 19.85),
    KnownPair(
        "GPU of 80 GB",
        "Qwen/Qwen2.5-Coder-32B-Instruct",
        65.5,
        _qwen_coder("", "0.5B", 0.49).draft,
        0.49,
        "bfloat16, by torch",
        "Apache-2.0",
    ),
)
"""File names and sizes as the hub had them in November 2026."""

LLAMA_3 = "bartowski/Llama-3.2-1B-Instruct-GGUF"
DRAFTS = {
    "qwen2.5": "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
    "qwen3": "Qwen/Qwen3-0.6B-GGUF",
    **dict.fromkeys(("llama-3.1", "llama-3.2", "llama-3.3"), LLAMA_3),  # 3.0 names some tokens otherwise
    "gemma-3": "ggml-org/gemma-3-270m-it-GGUF",
    "smollm2": "bartowski/SmolLM2-135M-Instruct-GGUF",
}
"""Repositories of the smallest model of further families, whose tokens were not compared here."""

MAKERS = re.compile("^(meta|qwen|google)-")
"""Matches what some file names have before the family."""


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(JsonOption):
    """Declares the target whose drafts are sought."""

    drafts_for: str = setting("", "target whose drafts to show: a file or a name", "TARGET")


@dataclass(frozen=True, kw_only=True)
class PullOptions(JsonOption):
    """Declares what to fetch."""

    name: str = setting(
        REQUIRED, "ORGANISATION/REPOSITORY, or hf://ORGANISATION/REPOSITORY/FILE.gguf", is_argument=True
    )


def add_models(commands: Any) -> None:
    add_command(commands, "models", "show pairs of models that fit", _models, ModelsOptions, MODELS)


def add_pull(commands: Any) -> None:
    words = "show the GGUF files of a repository, or fetch one"
    add_command(commands, "pull", words, _pull, PullOptions, PULL)


def _models(options: ModelsOptions) -> int:
    asked = options.drafts_for
    pairs = [pair for pair in PAIRS if not asked or _family(pair.target) == _family(asked)]
    draft = DRAFTS.get(_family(asked), "")
    is_itself = _name(draft).startswith(_name(asked).removesuffix(".gguf"))
    others = [draft] if draft and not is_itself else []
    files = list(_drafts_here(Path(asked).expanduser())) if asked and is_gguf(asked) else []
    if asked and not (pairs or others or files):
        raise UserError(
            f"no draft for {asked} is known; take a smaller model of the same family, and let "
            "`forerun doctor --draft FILE --verifier HOST:PORT` compare their tokens"
        )
    if options.json:
        print(json.dumps({"pairs": [asdict(pair) for pair in pairs], "repositories": others, "files": files}))
        return 0
    for pair in pairs:
        print(f"{pair.room}: {pair.form}, {pair.target_gb:g} GB, draft {pair.draft_gb:g} GB, {pair.licence}")
        both = f"forerun serve {pair.target}\n  forerun edge --draft {pair.draft}"
        one = f"forerun local --target {pair.target} --draft {pair.draft}"
        print(f"  {pair.measured}\n  {one if pair.is_local else both}\n")
    for each in others:
        print(f"A draft (`forerun edge` compares its tokens with the target's):\n  forerun pull {each}")
    print("\n".join(["Files here with the same tokens:", *(f"  {each}" for each in files)] if files else []))
    return 0


def _name(name: str) -> str:
    """Return a model's name without its owner and maker, in lower case."""
    return MAKERS.sub("", name.rstrip("/").rpartition("/")[2].lower().replace("_", "-"), 1)


def _family(name: str) -> str:
    """Return the beginning of a model's name that its drafts share, in lower case, up to its size."""
    words = _name(name).split("-")
    sizes = [place for place, word in enumerate(words) if re.fullmatch(r"[0-9.]+[bm]", word)]
    return "-".join(words[: sizes[0]] if sizes else words)


def _drafts_here(target: Path) -> Iterator[str]:
    """Yield the smaller GGUF files beside a target and in the hub's folder that have its tokens. Raises
    `UserError` for a target that cannot be read."""
    if is_remote(str(target)) or not target.exists():
        return
    from huggingface_hub.constants import HF_HUB_CACHE

    own, size = _tokens(target), target.stat().st_size
    found = [*sorted(target.parent.glob("*.gguf")), *sorted(Path(HF_HUB_CACHE).rglob("*.gguf"))]
    for path in {path.resolve(): path for path in found}.values():  # a fetched file is a link
        with suppress(ForerunError):
            if path.is_file() and path.stat().st_size < size and _tokens(path) == own:
                yield str(path)


def _tokens(path: Path) -> bytes:
    """Return the fingerprint of a file's tokens. Raises `UserError` for a file that fails its trial."""
    from common.llama.load_trial import ModelTrials
    from common.llama.model import LlamaModel, LlamaSettings
    from common.vocabulary import Vocabulary

    settings = LlamaSettings(find_model(str(path)))
    ModelTrials(find_paths(os.environ).tried).ensure(settings, weights=False)
    with LlamaModel(settings, weights=False) as model:
        return Vocabulary(model.token_table()).fingerprint


def _pull(options: PullOptions) -> int:
    if is_gguf(options.name):
        place = find_model(options.name)
        print(json.dumps({"file": place}) if options.json else place)
        return 0
    files = gguf_files(options.name)
    if not files:
        raise UserError(f"{options.name} has no GGUF file; repositories that have some often end in -GGUF")
    if options.json:
        print(json.dumps({"files": files}))
    else:
        print(
            "\n".join(
                table(("file", "GB"), [(name, f"{size / GB:.2f}") for name, size in files.items()], ["file"])
            )
        )
    return 0
