"""Builds the documentation site from the Markdown that GitHub shows: `make site` writes build/docs/site.

- Links between pages lead to pages of the site, and links to other files to the repository.
- Each client of docs/clients.md has a page: an agent its section, a library its tested program.
- llms.txt lists all pages, whose Markdown lies beside them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath, relpath

import yaml

from lab.tools.clients import Client, agents, libraries

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "docs"
SECTIONS = {
    "Start": ("README.md",),
    "Tutorials": tuple(
        f"docs/tutorials/{name}.md"
        for name in ("one_machine", "two_machines", "jetson", "kubernetes", "networks")
    ),
    "Guides": (
        *("docs/edge.md", "docs/fleet.md", "docs/verifier.md", "docs/targets.md", "docs/simulation.md"),
        "deploy/README.md",
    ),
    "Clients": ("docs/clients.md",),
    "Reference": ("docs/api.md", "docs/edge_config.md", "docs/verifier_config.md", "docs/glossary.md"),
    "Design": (
        *("docs/architecture.md", "docs/adaptation.md", "docs/protocol.md", "docs/guarantees.md"),
        *("docs/determinism.md", "docs/schemes.md", "docs/comparison.md"),
    ),
    "Studies": (
        *("lab/docs/*.md", "lab/measured/README.md", "lab/demo_models/README.md"),
        "lab/integrations/*/README.md",
    ),
    "Project": ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
}
"""Sections of the site and their pages: files of the repository."""

CLIENTS = "docs/clients.md"
LINK = re.compile(r'(\]\(|\bsrc="|\bhref=")(?!https?:|mailto:|#)([^)#\s"]+)')
PICTURES = {".png", ".svg", ".jpg", ".webp"}


class Site:
    """Collects pages and turns their links. `repository` is the address of the files, "" for this clone's."""

    def __init__(self, repository: str) -> None:
        self.repository = repository
        self.nav = {name: list(_matching(patterns)) for name, patterns in SECTIONS.items()}
        self.places = {path: _place(path) for paths in self.nav.values() for path in paths}
        self.pictures: set[str] = set()
        if forgotten := sorted({*_matching(("docs/**/*.md",))} - self.places.keys()):
            raise ValueError(f"SECTIONS of {__file__} must name {', '.join(forgotten)}")

    def pages(self) -> Iterator[tuple[str, str, str]]:
        """Yield section, place on the site and text of each page."""
        for section, paths in self.nav.items():
            for path in paths:
                text = (ROOT / path).read_text(encoding="utf-8")
                if path == CLIENTS:
                    yield from self._clients(section, text)
                else:
                    yield section, self.places[path], self.turned(text, path, self.places[path])

    def turned(self, text: str, origin: str, place: str) -> str:
        """Return a page's text with the links of `origin`, a file, as links of `place`, on the site."""

        def link(match: re.Match[str]) -> str:
            path = normpath(f"{origin}/../{match[2]}")
            if not (ROOT / path).exists():
                return match[0]  # code; or a mistake, of which the renderer warns
            if Path(path).suffix in PICTURES:
                self.pictures.add(path)
            elif path not in self.places:
                return match[1] + self._file(path)
            return match[1] + relpath(self.places.get(path, path), f"{place}/..")

        return LINK.sub(link, text)

    def _clients(self, section: str, text: str) -> Iterator[tuple[str, str, str]]:
        """Yield the page of all clients, without the agents' sections, and a page for each client."""
        pages = {}
        for name, version in agents(ROOT).items():
            _, heading, rest = text.partition(f"## {name}\n")
            own, _, _ = rest.partition("\n## ")
            text = text.replace(f"{heading}{own}\n", "")
            pages[name] = f"# {name}\n\nTested with {version}.\n{own}\n"
        pages |= {client.package: _library_page(client) for client in libraries(ROOT)}
        yield section, self.places[CLIENTS], self.turned(text, CLIENTS, self.places[CLIENTS])
        for name, page in pages.items():
            place = f"clients/{_slug(name)}.md"
            yield section, place, self.turned(page, CLIENTS, place)

    def _file(self, path: str) -> str:
        return f"{self.repository}/blob/main/{path}" if self.repository else (ROOT / path).as_uri()


def write(folder: Path, repository: str, address: str) -> None:
    """Write the site's sources, configuration and llms.txt into an empty folder. `address` is the site's."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    site = Site(repository)
    nav: dict[str, list[str]] = {}
    llms = [f"# {config['site_name']}\n\n> {config['site_description']}"]
    for section, place, text in site.pages():
        _write(folder / "pages" / place, text)
        if section not in nav:
            llms.append(f"\n## {section}\n")
        nav.setdefault(section, []).append(place)
        llms.append(f"- [{_title(text)}]({address}{place})")
    for path in site.pictures:
        (folder / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / "pages" / path)
    _write(folder / "pages" / "llms.txt", "\n".join(llms) + "\n")
    config |= {
        "site_url": address,
        "repo_url": repository,
        "nav": [{name: pages} for name, pages in nav.items()],
    }
    _write(folder / "mkdocs.yml", yaml.safe_dump(config, sort_keys=False))


def build(folder: Path, repository: str = "", address: str = "http://127.0.0.1:8000/") -> Path:
    """Build the site and return its folder. Raises `CalledProcessError` after a warning."""
    shutil.rmtree(folder, ignore_errors=True)
    write(folder, repository, address)
    config = str(folder / "mkdocs.yml")
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", config], check=True
    )
    shutil.copytree(folder / "pages", folder / "site", dirs_exist_ok=True)
    return folder / "site"


def _library_page(client: Client) -> str:
    """Return the page of a library: what is tested, and its program."""
    code = client.script.read_text(encoding="utf-8")
    language = "python" if client.script.suffix == ".py" else "javascript"
    tested = f"Tested with {client.version}: {', '.join(client.tested)}."
    words = "This is the test's program; `V1`, `TOKEN` and `MODEL` are [address, key and model](clients.md):"
    return f"# {client.package}\n\n{tested} {words}\n\n~~~{language}\n{code}~~~\n"


def _matching(patterns: tuple[str, ...]) -> Iterator[str]:
    for pattern in patterns:
        yield from (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern)))


def _place(path: str) -> str:
    return re.sub(r"(^|/)README.md$", r"\1index.md", path.removeprefix("docs/"))


def _title(text: str) -> str:
    return text.partition("# ")[2].partition("\n")[0]


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    build(
        BUILD,
        os.environ.get("FORERUN_REPOSITORY", ""),
        os.environ.get("FORERUN_SITE", "http://127.0.0.1:8000/"),
    )
