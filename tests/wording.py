"""The wording of errors and outputs, kept in one file: tests/wording.json.

A test asserts the class, the code and the fields of an error. `wording.raises` and `wording.keep` compare the
sentence with the file, under the test's id. This command accepts new wording, to be reviewed as one diff:

    python -m pytest -n auto --refresh-wording [tests/...]
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import pytest

E = TypeVar("E", bound=BaseException)

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).with_suffix(".json")
VARYING = (
    (rf"{re.escape(tempfile.gettempdir())}/pytest-of-[^/]+/pytest-\d+(/popen-\w+)?/[^/\s'\"]+\d", "TMP"),
    (re.escape(os.path.realpath(sys.executable)), "PYTHON"),
    (re.escape(str(ROOT)), "ROOT"),
    (rf"\b{os.getpid()}\b", "PID"),
    (r"(127\.0\.0\.\d|localhost|\[::1\]):\d{4,5}\b", r"\1:PORT"),
    (r"deserializing header: .*?\)\. Fetch", "deserializing header: SAFETENSORS). Fetch"),
    (r"has answered for [\d.]+ s", "has answered for N s"),
    (r"by [\d.]+ of the logits' spread", "by X of the logits' spread"),
    (r"'utf-8' codec .*|Expecting .*\(char \d+\)|maximum recursion depth exceeded[\w ]*", "DECODER"),
    (r"\[(SSL|X509): (\w+)\] .*?\(_ssl\.c:\d+\)", r"\2"),
    (r"failed to connect to all addresses; last error: [^)]*", "GRPC"),
    (r"(?s)the grammar is refused: .*", "the grammar is refused: LLGUIDANCE"),
    (r"/[^\s(]+\.cpp:\d+: ", ""),
)
"""Pattern and replacement of what differs between two runs, and of other programs' words."""
LONGEST = 400


class Wording:
    """Compares texts with the file; in a refresh, collects them for it."""

    def __init__(self) -> None:
        self.refresh = False
        self.kept: dict[str, list[str]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
        self.test = ""
        self.said = list[str]()
        self.collected = set[str]()

    def begin(self, test: str) -> None:
        self.test, self.said = test, []

    def check(self, text: str) -> None:
        for pattern, name in VARYING:
            text = re.sub(pattern, name, text)
        text = text[:LONGEST]
        at = len(self.said)
        self.said.append(text)
        if not self.refresh:
            kept = next(iter(self.kept.get(self.test, [])[at:]), None)
            assert text == kept, f"{text!r}\n was {kept!r}\n tests/wording.py says how to accept new wording"

    def passed(self, test: str, said: Any) -> None:
        """Take the texts of a test that passed."""
        self.kept.pop(test, None)
        if said:
            self.kept[test] = list(said)

    def write(self) -> None:
        lines = [
            f"{json.dumps(test)}: {json.dumps(texts, ensure_ascii=False)}"
            for test, texts in sorted(self.kept.items())
            if not self._gone(test)
        ]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")

    def _gone(self, test: str) -> bool:
        """Tell whether a test, or this case of it, exists no more."""
        path, name = test.split("::", 1)
        function = name.partition("[")[0].rpartition("::")[2]
        if not (ROOT / path).is_file() or f"def {function}(" not in (ROOT / path).read_text("utf-8"):
            return True
        runs_now = any(each.partition("[")[0] == test.partition("[")[0] for each in self.collected)
        return runs_now and test not in self.collected


WORDING = Wording()


def keep(text: str) -> None:
    """Compare a text with the file."""
    WORDING.check(text)


def raises(kind: type[E] | tuple[type[E], ...]) -> pytest.RaisesExc[E]:
    """`pytest.raises`, and the error's sentence is the one in the file."""
    return pytest.raises(kind, check=_is_kept)


def _is_kept(error: BaseException) -> bool:
    keep(str(error))
    return True
