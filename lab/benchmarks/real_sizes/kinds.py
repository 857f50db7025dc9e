"""Reads published prompts of several kinds, and puts them into a model's chat template.

The folder has HumanEval's, GSM8K's and MT-bench's own files. They are read where they are. An edit asks for a
function of HumanEval again with another name, so most of its answer stands in its prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.llama.model import LlamaModel
from edge_client.formats.chat_template import ChatTemplate
from lab.benchmarks.real_sizes.pair import Prompt
from simulator.documents import read_text

Entry = dict[str, Any]


def _code(entry: Entry) -> str:
    return f"Complete this Python function.\n\n```python\n{entry['prompt']}```"


def _edit(entry: Entry) -> str:
    name = entry["entry_point"]
    source = entry["prompt"] + entry["canonical_solution"]
    return f"Rename `{name}` to `{name}_v2`. Answer with the whole code.\n\n```python\n{source}```"


def _math(entry: Entry) -> str:
    return str(entry["question"])


def _chat(entry: Entry) -> str:
    return str(entry["turns"][0])


KINDS: dict[str, tuple[str, Callable[[Entry], str]]] = {
    "code": ("HumanEval.jsonl", _code),
    "math": ("gsm8k_test.jsonl", _math),
    "chat": ("mt_bench_question.jsonl", _chat),
    "edit": ("HumanEval.jsonl", _edit),
}
"""The file of each kind, and what an entry asks for."""


def published_prompts(
    model: LlamaModel, folder: Path, count: int, kinds: Sequence[str] = tuple(KINDS)
) -> list[Prompt]:
    """Return `count` prompts of each kind, spread evenly over its file. Raises `UserError`."""
    boundaries = dict(zip(("bos_token", "eos_token"), model.boundary_texts, strict=True))
    template = ChatTemplate(model.chat_template, boundaries) if model.chat_template else None
    prompts = list[Prompt]()
    for kind in kinds:
        for number, asked in enumerate(_asked(folder, kind, count), 1):
            message = {"role": "user", "content": asked}
            text = asked if template is None else template.render([message])
            prompts.append(Prompt(f"{kind}:{number}", text, tuple(model.tokenize(text, True))))
    return prompts


def _asked(folder: Path, kind: str, count: int) -> list[str]:
    name, ask = KINDS[kind]
    path = folder / name
    lines = [line for line in read_text(f"the prompts of kind {kind}", path).split("\n") if line.strip()]
    if not 1 <= count <= len(lines):
        raise UserError(f"--texts is {count}; {path} has {len(lines)} prompts")
    try:
        return [ask(json.loads(lines[at * len(lines) // count])) for at in range(count)]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path} is not the published {name} ({error!r}); give its folder") from error
