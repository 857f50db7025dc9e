"""The links and the commands of README.md and docs/ lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forerun.cli import COMMANDS, build_parser

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "edge.md"
PAGES = (
    ROOT / "README.md",
    ROOT / "deploy" / "README.md",
    ROOT / "lab" / "demo_models" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "clients").glob("*.md")),
    *sorted((ROOT / "lab" / "integrations").glob("*/README.md")),
    ROOT / "lab" / "measured" / "README.md",
    *sorted((ROOT / "lab" / "docs").glob("*.md")),
)
FOR_NEWCOMERS = (
    ROOT / "README.md",
    ROOT / "docs" / "edge.md",
    ROOT / "docs" / "jetson.md",
    ROOT / "docs" / "edge_config.md",
)
WITH_ACTIONS = ("edge", "fleet", "simulate")
PROGRAM = r"^(?:sudo |\.venv/bin/)?forerun"
"""As a line of a shell begins."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


def code(page: Path) -> list[str]:
    """Its code spans, and the lines of its indented blocks."""
    text = page.read_text(encoding="utf-8")
    return [*re.findall(r"`([^`]+)`", text), *re.findall(r"^    (.+)$", text, re.MULTILINE)]


def endpoints(text: str) -> set[tuple[str, str]]:
    """Methods and paths in the first column of the guide's table."""
    table = text.split("\n## Endpoints\n")[1].split("\n## ", maxsplit=1)[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {(method, path) for cell in cells for method, path in re.findall(r"`([A-Z]+) ([^`]+)`", cell)}


class NoVerifiers:
    """A `VerifierChoice` of none."""

    def route(self, key: str, skill: object, target: str) -> object:
        raise LookupError(key)

    async def heard(self, patience: float) -> None:
        raise LookupError(patience)

    def refusal(self) -> None:
        """See `best`."""

    def best(self) -> None:
        return None


def served() -> set[tuple[str, str]]:
    """Methods and paths that the daemon has."""
    from edge_client.api.app import Api, ApiSettings
    from edge_client.api.endpoints import Defaults, TextEndpoints
    from edge_client.api.page import page_routes, tree_routes
    from edge_client.api.pairs import Pairs
    from edge_client.api.security import Gate
    from edge_client.texts.text_service import TextService, TextSettings
    from tests.drivers.tiny import VOCABULARY
    from tests.edge_client.api.world import Letters

    texts = TextService(Letters(), VOCABULARY, NoVerifiers(), None, TextSettings())  # type: ignore[arg-type]
    api = Api(
        Pairs(TextEndpoints(texts, Defaults())),
        ApiSettings(Gate()),
        status=dict,
        ready=str,
        more=(*page_routes(), *tree_routes(texts)),
    )
    return {(method, route.path) for route in api.routes for method in (route.methods or set()) - {"HEAD"}}


@pytest.mark.api
@pytest.mark.grpc
def test_the_guide_has_the_endpoints_that_there_are() -> None:
    assert endpoints(GUIDE.read_text(encoding="utf-8")) == served()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8")):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(page)} links to {target}#{anchor}"


@pytest.mark.parametrize("page", FOR_NEWCOMERS, ids=name_of)
def test_every_command_that_is_named_is_one(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {each for text in code(page) for each in re.findall(rf"{PROGRAM} +([a-z][a-z-]*)", text)}
    assert named, "the pattern has gone stale"
    assert named <= set(COMMANDS)
    for command in named & set(WITH_ACTIONS):
        actions = {
            each for text in code(page) for each in re.findall(rf"{PROGRAM} {command} ([a-z][a-z-]*)", text)
        }
        for action in actions:
            with pytest.raises(SystemExit) as ended:
                build_parser(command).parse_args([command, action, "--help"])
            assert ended.value.code == 0, f"forerun {command} {action}: {capsys.readouterr().err}"
