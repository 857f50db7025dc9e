"""Prompts for demonstrations and benchmarks: beginnings of functions in modules that the pair never saw."""

import json
from pathlib import Path
from typing import Final

from demo_models.corpus import Module

STARTS: Final = {
    "bisect": ("bisect.py", "def insort_right("),
    "configparser": ("configparser.py", "class RawConfigParser("),
    "csv": ("csv.py", "class DictReader:"),
    "fractions": ("fractions.py", "    def __new__(cls"),
    "html": ("html/parser.py", "class HTMLParser("),
    "json": ("json/decoder.py", "class JSONDecodeError("),
    "shutil": ("shutil.py", "def copyfile("),
    "textwrap": ("textwrap.py", "def wrap(text, width"),
}
"""Name of each prompt, the held-out module it comes from, and the text it begins with."""

PROMPT_LINES: Final = 12
"""Lines per prompt: 60 to 200 tokens of this tokenizer."""


def cut_prompt(module: Module, start: str) -> str:
    """Return `PROMPT_LINES` lines of `module` from the first place where `start` stands.

    Raises ValueError when the module does not contain `start`, as in a Python version that has moved it.
    """
    offset = module.text.index(start)
    return "".join(module.text[offset:].splitlines(keepends=True)[:PROMPT_LINES])


def write_prompts(modules: tuple[Module, ...], path: Path) -> None:
    """Write the prompts cut from the held-out `modules` to `path` as a JSON list."""
    by_name = {module.name: module for module in modules}
    prompts = [
        {"name": name, "module": origin, "text": cut_prompt(by_name[origin], start)}
        for name, (origin, start) in STARTS.items()
    ]
    path.write_text(json.dumps(prompts, indent=2) + "\n", encoding="utf-8")
