"""Renders one chat template in a process of its own, which `templates` starts, feeds and ends.

    python -m edge_client.daemon.template_child

A line of JSON comes with the template's `source`, then one with `values` for each text; one goes out for
each, with the `text`, what it `refused`, or how it `broke`. Jinja's immutable sandbox keeps a template from
this process' objects; what it can multiply, and how long it takes, is the process' own bound: it has
`MEMORY` and no files to write, and whoever started it ends it when it takes too long.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import select
import sys
from typing import Any, BinaryIO

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 768 * 2**20
"""Bytes of address space, Python's own included: the largest text in every form that it takes on its way."""

MAX_LINE = 2**28
"""Bytes of what is asked: more than its memory takes."""

IDLE = 1800.0
"""Seconds without a text after which it ends: its 20 MB are somebody else's then."""


class _Refused(Exception):
    """A template's own `raise_exception`: what it says of the messages."""


class _TooMuch(Exception):
    """It writes more than it may."""


def main() -> int:
    """Until there is nothing more to do."""
    _bound()
    lines, out = sys.stdin.buffer, sys.stdout.buffer
    first = lines.readline(MAX_LINE)
    if not first:
        return 0
    asked, template = json.loads(first), None
    _say(out, {"ready": True})
    while line := _next(lines):
        template = template or _parsed(asked["source"])  # to read one may take as long as to render it
        _say(out, _told(template, json.loads(line)["values"], asked["most"]))
    return 0


def _next(lines: BinaryIO) -> bytes:
    """The next line; empty if none comes for so long that none is expected."""
    there, _, _ = select.select([lines], [], [], IDLE)
    return lines.readline(MAX_LINE) if there else b""


def _bound() -> None:
    """Where a system has no such limits, or does not allow them, whoever started it looks after it alone. If
    memory is short this is the process to end."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    with contextlib.suppress(ImportError):
        import resource

        for name, most in (("RLIMIT_AS", MEMORY), ("RLIMIT_DATA", MEMORY), ("RLIMIT_FSIZE", 0)):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, name), (most, most))


def _told(template: jinja2.Template | str, values: dict[str, Any], most: int) -> dict[str, str]:
    if isinstance(template, str):
        return {"unreadable": template}
    try:
        return {"text": _text(template, values, most)}
    except _Refused as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"broke": f"it needs more than {MEMORY >> 20} MiB of memory"}
    except Exception as error:  # noqa: BLE001 - outermost frame: a template may raise anything
        return {"broke": str(error) or type(error).__name__}


def _text(template: jinja2.Template, values: dict[str, Any], most: int) -> str:
    parts, size = list[str](), 0
    for part in template.generate(values):
        size += len(part)
        if size > most:
            raise _TooMuch(f"it writes more than {most} characters")
        parts.append(part)
    return "".join(parts)


def _parsed(source: str) -> jinja2.Template | str:
    """The template, or why it is none. Jinja evaluates what is constant here already."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)  # noqa: DTZ005 - the user's own day
    try:
        return environment.from_string(source)
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        return str(error) or type(error).__name__


def _refuse(message: str) -> None:
    raise _Refused(message)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """As transformers does it: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _say(out: BinaryIO, found: dict[str, Any]) -> None:
    out.write(json.dumps(found).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
