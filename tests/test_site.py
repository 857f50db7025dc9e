"""The documentation site: every page is reached, every link holds, every client has a page."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from lab.tools.clients import agents, libraries

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://repository.example/forerun"
ADDRESS = "https://site.example/"

pytestmark = [pytest.mark.site, pytest.mark.slow]


class Links(HTMLParser):
    """Collects a page's links and the names that links may lead to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(unquote(value))
            elif value and name in ("id", "name"):
                self.names.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once: a warning of the renderer is an error."""
    from lab.tools.site import build

    return build(tmp_path_factory.mktemp("site"), REPOSITORY, ADDRESS)


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = {path: Links(path) for path in site.rglob("*.html")}
    assert len(pages) > 50
    for page, found in pages.items():
        for link in found.links:
            target, _, anchor = link.replace(ADDRESS, "/").partition("#")
            if target.startswith(f"{REPOSITORY}/blob/main/"):
                assert (ROOT / target.removeprefix(f"{REPOSITORY}/blob/main/")).exists(), f"{page}: {link}"
            elif not re.match("[a-z]+:", target):
                there = (site / target[1:] if target.startswith("/") else page.parent / target).resolve()
                there = page if not target else there / "index.html" if there.is_dir() else there
                assert there.exists(), f"{page}: {link}"
                assert not anchor or there not in pages or anchor in pages[there].names, f"{page}: {link}"


def test_every_client_has_a_page(site: Path) -> None:
    pages = list((site / "clients").glob("*/index.html"))
    assert len(pages) == len(agents(ROOT)) + len(list(libraries(ROOT)))


def test_llms_txt_names_every_page_and_its_markdown_is_there(site: Path) -> None:
    named = re.findall(rf"\({ADDRESS}(.*\.md)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert {site / name for name in named} == set(site.rglob("*.md"))


def test_a_search_finds_the_words_of_a_page(site: Path) -> None:
    assert "commit walk" in (site / "search.json").read_text(encoding="utf-8")
