"""What an index's project pages say of newest releases: `python -m tools.audit --service newest`.

pip-audit asks one page for each release (`/pypi/NAME/VERSION/json`). Mirrors often have only the project's
page (`/pypi/NAME/json`), whose advisories are those of its newest release. So a pin that is its project's
newest release is judged by what stands there, and of every other one it is said that it was not asked about,
and why: silence about an old release is no good word for it.
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from tools.locks import Pin

INDEX = "https://pypi.org"
LONGEST_PAGE = 64 << 20  # bytes; a page has every file of every release, the longest known some 10 MB
SILENCE = 60.0  # seconds without a byte after which a page is given up
WOULD_ASK = "python -m tools.audit --service pypi (or osv) would ask"


class PageError(Exception):
    """A project's page cannot be had or read; the message says why."""


@dataclass(frozen=True, slots=True)
class Advisory:
    """What is known against a release."""

    ids: tuple[str, ...]  # its own, then those that others gave it
    fixed_in: tuple[str, ...]  # releases; empty: none is known
    words: str

    def __str__(self) -> str:
        mended = f"mended in {', '.join(self.fixed_in)}" if self.fixed_in else "mended in no release"
        return f"{', '.join(self.ids)} ({mended}): {self.words}"


@dataclass(frozen=True, slots=True)
class Page:
    """Of a project."""

    newest: str  # its newest release
    advisories: tuple[Advisory, ...]  # against that one, each told once


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a pin."""

    pin: Pin
    findings: tuple[Advisory, ...] = ()
    ignored: tuple[Advisory, ...] = ()
    why_not: str = ""  # why it was not asked about; empty if it was

    @property
    def is_clean(self) -> bool:
        return not self.findings and not self.why_not


class Index:
    """Asks for each project's page once."""

    def __init__(self, address: str = INDEX) -> None:
        self._address = address.rstrip("/")
        self._pages: dict[str, Page | PageError] = {}

    def page(self, name: str) -> Page:
        """Raises `PageError`."""
        if name not in self._pages:
            self._pages[name] = self._asked(name)
        found = self._pages[name]
        if isinstance(found, PageError):
            raise found
        return found

    def _asked(self, name: str) -> Page | PageError:
        url = f"{self._address}/pypi/{name}/json"
        try:
            with urllib.request.urlopen(url, timeout=SILENCE) as answer:
                text = answer.read(LONGEST_PAGE + 1)
            if len(text) > LONGEST_PAGE:
                return PageError(f"{url} is longer than {LONGEST_PAGE >> 20} MiB")
            return page_of(json.loads(text))
        except (OSError, http.client.HTTPException) as error:
            return PageError(f"{url} did not answer: {error}")
        except (ValueError, KeyError, TypeError) as error:
            return PageError(f"{url} is no page of a project: {error!r}")


def page_of(told: Any) -> Page:
    """Raises `KeyError`, `TypeError` if it is none. Advisories that were withdrawn are left out, and of those
    that are one by another name the first is kept, with all its names."""
    kept: list[Advisory] = []
    for each in told["vulnerabilities"]:
        names = (str(each["id"]), *map(str, each.get("aliases") or ()))
        if each.get("withdrawn") or any(set(names) & set(known.ids) for known in kept):
            continue
        words = str(each.get("summary") or each.get("details") or "").strip().partition("\n")[0]
        kept.append(Advisory(names, tuple(map(str, each.get("fixed_in") or ())), words))
    return Page(str(told["info"]["version"]), tuple(kept))


def verdicts(pins: Iterable[Pin], index: Index, ignored: frozenset[str]) -> list[Verdict]:
    """Of every pin, in their order. `ignored`: ids of advisories."""
    return [_verdict(pin, index, ignored) for pin in pins]


def _verdict(pin: Pin, index: Index, ignored: frozenset[str]) -> Verdict:
    release = pin.version.partition("+")[0]  # a local build is known by its public release
    try:
        page = index.page(pin.name)
        is_newest = Version(release) == Version(page.newest)
    except (PageError, InvalidVersion) as error:
        return Verdict(pin, why_not=str(error))
    if not is_newest:
        return Verdict(pin, why_not=f"the page tells of {page.newest} alone, {release} is older; {WOULD_ASK}")
    mine = tuple(each for each in page.advisories if not ignored & set(each.ids))
    return Verdict(pin, mine, tuple(each for each in page.advisories if each not in mine))


def lines(name: str, found: list[Verdict]) -> list[str]:
    """What to tell of a lock: its figures, then pins that are not clean or of which something is ignored."""
    asked = [each for each in found if not each.why_not]
    told = [
        f"{name}: {len(found)} pins, {len(asked)} newest releases asked about, "
        f"{sum(each.is_clean for each in asked)} clean, {sum(map(bool, (e.findings for e in asked)))} with "
        f"findings, {len(found) - len(asked)} not asked about"
    ]
    for each in found:
        release = f"  {each.pin.name} {each.pin.version}"
        told += [f"{release}: {advisory}" for advisory in each.findings]
        told += [f"{release}: ignored: {', '.join(advisory.ids)}" for advisory in each.ignored]
        told += [f"{release}: not asked about: {each.why_not}"] if each.why_not else []
    return told
