"""Doctests of foreign functions: what the check refuses, and what the limits end."""

import sys

import pytest

from training.doctests import Outcome, RefusedError, Verdict, check, run_doctests

HEAD = 'def f(x):\n    """Do something.\n\n    >>> f(3)\n    9\n    """\n'

on_unix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of a process")


def verdict_on(*lines: str) -> Outcome:
    (outcome,) = run_doctests(HEAD + "".join(f"    {line}\n" for line in lines))
    return outcome


@pytest.mark.parametrize(
    "lines",
    [
        ("return x * x",),
        ("total = 0", "for number in range(x):", "    total += 2 * number + 1", "return total"),
        ("squares = {number: number ** 2 for number in range(9)}", "return squares.get(x, None)"),
        ("words = f'{x} {x}'.split()", "return sum(int(word) for word in words) + len(words[0]) + 2"),
        ("return f(x - 1) + 2 * x - 1 if x > 0 else 0",),
        ("while x < 9:", "    x += 1", "return sorted([x, 4], key=lambda each: -each)[0]"),
    ],
)
def test_arithmetic_strings_containers_and_loops_are_run(lines: tuple[str, ...]) -> None:
    assert verdict_on(*lines) == Outcome("f", Verdict.PASSED)


def test_a_function_that_returns_something_else_fails_and_the_difference_is_shown() -> None:
    outcome = verdict_on("return x + 1")
    assert (outcome.verdict, outcome.why) == (Verdict.FAILED, "f(3) is 4, not 9")


def test_an_exception_fails_its_example() -> None:
    outcome = verdict_on("return 9 / (x - 3)")
    assert (outcome.verdict, outcome.why) == (
        Verdict.FAILED,
        "f(3) is ZeroDivisionError: division by zero, not 9",
    )


def test_each_function_of_a_text_is_judged_by_itself() -> None:
    second = HEAD.replace("f(", "g(") + "    return (\n"
    silent = 'def h(x):\n    """Has no example."""\n    return x\n'
    outcomes = run_doctests(f"# A comment.\n{HEAD}    return x * x\n\n\n{second}\n\n{silent}")
    assert [(each.function, each.verdict) for each in outcomes] == [
        ("f", Verdict.PASSED),
        ("g", Verdict.FAILED),
    ]
    assert run_doctests("x = 1\n") == []


ESCAPES = {
    "a module": "import os",
    "a part of a module": "from os import system",
    "a dangerous builtin": "return open('file')",
    "code in a text": "return eval('1')",
    "the import function": "return __import__('os')",
    "an attribute by its name": "return getattr(x, 'real')",
    "the builtins": "return __builtins__",
    "a class behind a value": "return x.__class__.__base__",
    "a frame of a generator": "return (n for n in [x]).gi_frame",
    "a function's globals": "return f.__globals__",
    "a field of a format": "return '{0.__class__}'.format(x)",
    "a format that is handed on": "return sorted(['{0.__class__}'], key=str.format)",
    "a mapped format": "return '{x.__class__}'.format_map({'x': x})",
    "an attribute in an f-string": "return f'{x.__class__}'",
    "a width in an f-string": "return f'{x:{10**9}}'",
    "an attribute that is set": "f.x = 1",
    "a class": "class A: pass",
    "a with statement": "with x: pass",
    "a try statement": "try:\n        pass\n    finally:\n        pass",
    "a global name": "global x",
    "an assertion": "assert x",
    "an exception": "raise x",
    "a generator function": "yield x",
    "a walrus": "return (y := x)",
    "a match": "match x:\n        case {}: pass",
    "bytes": "return b'x'",
    "a shift": "return 1 << x",
    "a name of nobody": "return unknown",
    "a nested decorator": "@len\n    def g(): pass",
    "an attribute in a default": "g = lambda y=x.__class__: y",
    "an attribute in an annotation": "y: x.__class__ = 1",
}


@pytest.mark.parametrize("line", ESCAPES.values(), ids=ESCAPES)
def test_the_check_refuses_what_is_not_on_its_lists(line: str) -> None:
    with pytest.raises(RefusedError):
        check(f"def f(x):\n    {line}\n")


@pytest.mark.parametrize(
    "text",
    [
        "def f(x, y=open): return x",
        "def f(x: __import__): return x",
        "def f(x): return x\nf(1)",
        "def f(x):\n    return x\n\n\nimport os",
        "def f(x): return " + "-" * 15_000 + "x",
        "def f(x): return x" + " " * 20_000,
    ],
)
def test_nothing_stands_beside_a_function_or_in_its_head_and_its_size_is_bounded(text: str) -> None:
    with pytest.raises(RefusedError):
        check(text)


def test_an_example_is_checked_like_a_body() -> None:
    (outcome,) = run_doctests('def f(x):\n    """\n    >>> f.__globals__\n    9\n    """\n    return x\n')
    assert outcome.verdict is Verdict.REFUSED


@on_unix
@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        ("while True:", "    pass"),
        ("return 9 ** 9 ** 9",),
        ("return 'a' * 10 ** 11",),
        ("return [0] * 10 ** 10",),
        ("found = []", "while True:", "    found = [found, found, 'a' * 10 ** 6 + str(x)]"),
        ("while True:", "    x *= x"),
        ("return '%1000000000000d' % x",),
        ("return f(x)",),
    ],
)
def test_what_never_ends_or_fills_the_memory_fails(lines: tuple[str, ...]) -> None:
    assert verdict_on(*lines).verdict is Verdict.FAILED
