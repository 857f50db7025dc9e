"""The training text: generated functions, and the source of Python's own standard library.

Nothing is downloaded: the library is what `sysconfig` says this interpreter carries, so two Python versions
train on slightly different text. Python is distributed under the PSF licence; see README.md. The library is
split by whole modules, the functions by what they compute.
"""

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from lab.demo_models.forms import draw_form
from lab.demo_models.functions import Function
from lab.demo_models.pipelines import draw_pipeline

# Third-party code, tests, and the tables and user interfaces that would fill a large part of a short run.
EXCLUDED_PARTS: Final = frozenset((
    "__pycache__", "dist-packages", "encodings", "idle_test", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "tkinter", "turtledemo",
))  # fmt: skip
EXCLUDED_PREFIXES: Final = ("_sysconfigdata", "turtle.py", "this.py", "entities.py")

# Whole modules, named so that the split does not move when a Python release adds or drops a file. They are
# ordinary library code of several kinds: parsing, files, networking, data structures, text.
HELD_OUT: Final[tuple[str, ...]] = (
    "bisect.py",
    "cmd.py",
    "concurrent/futures/thread.py",
    "configparser.py",
    "csv.py",
    "fileinput.py",
    "fractions.py",
    "graphlib.py",
    "gzip.py",
    "html/parser.py",
    "http/cookies.py",
    "json/decoder.py",
    "sched.py",
    "shutil.py",
    "textwrap.py",
    "wsgiref/handlers.py",
)

LIBRARY_SHARE: Final = 0.08
"""Part of the training text that is library source, in characters; the rest is generated functions."""

PIPELINE_SHARE: Final = 0.7
"""Part of the generated functions that are pipelines; the others are forms."""

MOST_FUNCTIONS: Final = 8
ALONE_SHARE: Final = 0.8
"""Chance that a document ends after each function. Above a half, a greedy text ends with its function."""

SPOKEN_SHARE: Final = 0.2
"""Part of the functions that answer a request in a comment, as in a chat, and have no docstring."""

SHORT_SHARE: Final = 0.4
"""Part of the docstrings without examples: more functions for the same number of tokens."""

BARE_SHARE: Final = 0.1
"""Part of the forms of one kind that have neither docstring nor types: their names say what they do."""

NUM_PROMPTS: Final = 8
PROMPT_SEED: Final = 1
"""Of the bundled prompts; the committed target completes all eight."""

PROMPT_LINES: Final = 5
"""Least lines of a bundled prompt's body, so that there is something to watch."""

PROMPT_CHARACTERS: Final = 75
"""Most characters of its description."""

BODY_WEIGHT, OTHER_WEIGHT = 1.0, 0.05
"""Weight of a token in the loss. Docstrings hold much that cannot be foreseen: the arguments of examples.
Equal weights teach that first, and teach late that a body follows from its docstring: most of the gradient
comes from what cannot be learnt."""

Text: TypeAlias = tuple[tuple[str, float], ...]
"""Parts of a text to train on, each with the weight of its tokens. Parts are cut where tokens are, too."""

Modules: TypeAlias = dict[str, str]
"""Path of a source file below the library root, with forward slashes -> its text; in the order of paths."""


def library_root() -> Path:
    """Return the directory of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def load_split(root: Path | None = None) -> tuple[Modules, Modules]:
    """Read the library below `root` (default: this interpreter's): training modules and `HELD_OUT`.

    Both are in name order, without modules that are excluded, empty or not UTF-8.
    """
    root, modules = root or library_root(), Modules()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        name = path.relative_to(root)
        if not EXCLUDED_PARTS.isdisjoint(name.parts) or name.name.startswith(EXCLUDED_PREFIXES):
            continue
        if (text := read_source(path)).strip():
            modules[name.as_posix()] = text
    held_out = {name: modules.pop(name) for name in HELD_OUT if name in modules}
    return modules, held_out


def read_source(path: Path) -> str:
    """Return the text of `path` with `\\n` line ends, or nothing when it is not UTF-8 (a few are Latin-1)."""
    try:
        return path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return ""


def training_texts(library: Modules, num_documents: int, seed: int) -> list[Text]:
    """Return `num_documents` of generated functions and their share of library modules, in random order."""
    rng = random.Random(seed)
    texts = [document(rng) for _ in range(num_documents)]
    wanted = LIBRARY_SHARE / (1 - LIBRARY_SHARE) * sum(len(part) for text in texts for part, _ in text)
    for module in rng.sample(list(library.values()), len(library)):
        if wanted <= 0:
            break
        texts.append(((module[: round(wanted)], OTHER_WEIGHT),))
        wanted -= len(module)
    rng.shuffle(texts)
    return texts


def document(rng: random.Random) -> Text:
    """Return one to `MOST_FUNCTIONS` functions that are trained on, two blank lines apart."""
    parts: list[tuple[str, float]] = []
    for left in reversed(range(MOST_FUNCTIONS)):
        head, body = trained_function(rng)
        is_last = not left or rng.random() < ALONE_SHARE
        parts += [(head, OTHER_WEIGHT), (body if is_last else f"{body}\n\n", BODY_WEIGHT)]
        if is_last:
            break
    return tuple(parts)


def trained_function(rng: random.Random) -> tuple[str, str]:
    """Return head and body of a function that is trained on."""
    while True:
        function = draw_function(rng)
        if not function.is_held_out and function.fits and (head := head_of(function, rng)) is not None:
            return head, function.indented_body


def plain(text: Text) -> str:
    """Return the text without weights."""
    return "".join(part for part, _ in text)


def head_of(function: Function, rng: random.Random) -> str | None:
    """Return what stands before the body: a docstring with examples, if there are any, or a request."""
    if rng.random() < SPOKEN_SHARE:
        return f"{function.request(rng)}\n{function.head}"
    if not function.combination and rng.random() < BARE_SHARE:
        return function.bare_head
    return function.short_prompt if rng.random() < SHORT_SHARE else function.prompt(rng)


def held_out_functions(seed: int) -> Iterator[tuple[Function, str]]:
    """Yield functions that are not trained on, each with its prompt, and no combination twice."""
    rng, seen = random.Random(f"held out {seed}"), set[str]()
    while True:
        function = draw_function(rng)
        if not function.is_held_out or not function.fits or function.combination in seen:
            continue
        if (prompt := function.prompt(rng)) is not None:
            seen.add(function.combination)
            yield function, prompt


def draw_function(rng: random.Random) -> Function:
    """Return a pipeline or one of the forms."""
    return draw_pipeline(rng) if rng.random() < PIPELINE_SHARE else draw_form(rng)


def bundled_prompts() -> list[dict[str, str]]:
    """Return `NUM_PROMPTS` held-out prompts, whose functions begin and end differently."""
    chosen: dict[tuple[str, str], dict[str, str]] = {}
    for function, prompt in held_out_functions(PROMPT_SEED):
        lines = function.body.split("\n")
        if len(lines) >= PROMPT_LINES and len(function.description) <= PROMPT_CHARACTERS:
            chosen.setdefault((lines[0], lines[-1]), {"name": function.name, "text": prompt})
        if len(chosen) == NUM_PROMPTS:
            break
    return list(chosen.values())
