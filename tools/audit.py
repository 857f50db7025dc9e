"""Known weaknesses of what the locks hold: `python -m tools.audit` asks pip-audit, a tool of its own.

`pip install pip-audit==2.10.1` in an environment of its own, and `--pip-audit PATH`. It asks PyPI's advisory
service (`--service osv`: OSV's). Whatever it cannot ask about is a failure here, and not, as pip-audit has it
by default, a remark. Where neither can be asked for single releases, `--service newest` asks an index's pages
of projects itself, without pip-audit, about those pins that are newest (`tools/audit_newest.py`).

Findings that do not concern us stand in `deploy/locks/audit_ignored.toml`, each with its reason and the day
on which that is looked at again; one that has passed is a failure.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.audit_newest import INDEX, Index, lines, verdicts
from tools.locks import FOLDER, LOCKS, path_of, read

IGNORED = FOLDER / "audit_ignored.toml"


@dataclass(frozen=True, slots=True)
class Ignored:
    """A finding that does not concern us."""

    id: str  # of the advisory
    reason: str
    until: datetime.date


class AuditError(Exception):
    """The file of ignored findings is wrong; the message says how."""


def ignored(text: str, today: datetime.date) -> list[Ignored]:
    """What a file says. Raises `AuditError` for an entry without a reason, or whose day has passed."""
    found = [Ignored(**entry) for entry in tomllib.loads(text).get("ignored", [])]
    for entry in found:
        if len(entry.reason) < 20:
            raise AuditError(f"{entry.id} is ignored without a reason")
        if entry.until <= today:
            raise AuditError(f"{entry.id} was ignored until {entry.until}; look at it again")
    return found


def command(program: str, requirements: Path, service: str, entries: list[Ignored]) -> list[str]:
    """pip-audit's command line; it resolves nothing, as a lock is resolved."""
    asked = [program, "--requirement", str(requirements), "--disable-pip", "--no-deps", "--strict"]
    return [*asked, "--vulnerability-service", service, *(f"--ignore-vuln={each.id}" for each in entries)]


def audit(name: str, program: str, service: str, entries: list[Ignored]) -> bool:
    """Whether a lock is clean. Local builds (2.13.0+cpu) are asked about by their public release."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / f"{name}.txt"
        pins = [f"{pin.name}=={pin.version.split('+')[0]}" for pin in read(path_of(name))]
        plain.write_text("\n".join(pins) + "\n", encoding="utf-8")
        return subprocess.run(command(program, plain, service, entries), check=False).returncode == 0


def audit_newest(name: str, index: Index, entries: list[Ignored]) -> bool:
    """Whether all of a lock is newest and clean; the rest is printed."""
    found = verdicts(read(path_of(name)), index, frozenset(each.id for each in entries))
    print("\n".join(lines(name, found)))
    return all(each.is_clean for each in found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.audit", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="LOCK", help=f"of {', '.join(LOCKS)} (all)")
    parser.add_argument("--pip-audit", default="pip-audit", metavar="PATH", help="the program (%(default)s)")
    parser.add_argument(
        "--service", choices=("pypi", "osv", "newest"), default="pypi", help="who is asked (%(default)s)"
    )
    parser.add_argument("--index", default=INDEX, metavar="URL", help="of `newest` (%(default)s)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing is known against anything, and everything was asked about."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = options.names or list(LOCKS)
    if strange := set(names) - set(LOCKS):
        parser.error(f"there is no lock {strange.pop()!r}; there are {', '.join(LOCKS)}")
    try:
        today = datetime.datetime.now(datetime.UTC).date()
        entries = ignored(IGNORED.read_text(encoding="utf-8"), today)
        if options.service == "newest":
            index = Index(options.index)
            clean = {name: audit_newest(name, index, entries) for name in names}
        else:
            clean = {name: audit(name, options.pip_audit, options.service, entries) for name in names}
    except (AuditError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for name, is_clean in clean.items():
        print(f"{name}: {'nothing is known against it' if is_clean else 'not clean, or not asked'}")
    return 0 if all(clean.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
