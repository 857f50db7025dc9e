"""Evaluates the examples of one function, in a process of its own: `python -I -S doctest_child.py`.

Standard input holds one JSON object with `source`, `examples`, `builtins`, `seconds` and `memory`. Standard
output gets a JSON list: what each example shows in a Python shell. This file imports nothing of ours, as
`-I -S` hides it.
"""

import builtins
import json
import sys
from typing import Any

MOST_CHARACTERS = 10_000
"""Of a result. An example that shows more is not a useful one."""


def limit(seconds: int, memory: int) -> None:
    """Lower what this process may use, where the system allows that: it opens and starts nothing any more."""
    try:
        import resource
    except ImportError:  # Windows: the parent's patience is the only limit
        return
    limits = {"RLIMIT_CPU": seconds, "RLIMIT_AS": memory}
    limits |= dict.fromkeys(("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_CORE"), 0)
    for name, most in limits.items():
        if (kind := getattr(resource, name, None)) is not None:
            resource.setrlimit(kind, (most, most))


def shown(example: str, namespace: dict[str, Any]) -> str:
    """Return what a shell shows for the expression: nothing for None, a line that names an exception."""
    try:
        value = eval(example, namespace)  # noqa: S307  # checked by the parent
        return "" if value is None else repr(value)[:MOST_CHARACTERS]
    except Exception as error:  # noqa: BLE001  # a foreign function's; any is its example's result
        return f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]


def main() -> None:
    task = json.load(sys.stdin)
    limit(task["seconds"], task["memory"])
    namespace = {"__builtins__": {name: getattr(builtins, name) for name in task["builtins"]}}
    exec(task["source"], namespace)  # noqa: S102  # checked by the parent
    json.dump([shown(example, namespace) for example in task["examples"]], sys.stdout)


if __name__ == "__main__":
    main()
