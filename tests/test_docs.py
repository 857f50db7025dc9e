"""The links and the commands of README.md and docs/ lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from forerun.cli import COMMANDS_BY_WORD, build_parser
from lab.tools.site import Site

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "deploy" / "README.md",
    ROOT / "lab" / "demo_models" / "README.md",
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "lab" / "integrations").glob("*/README.md")),
    ROOT / "lab" / "measured" / "README.md",
    *sorted((ROOT / "lab" / "docs").glob("*.md")),
)
FOR_NEWCOMERS = (
    ROOT / "README.md",
    ROOT / "docs" / "api.md",
    ROOT / "docs" / "edge.md",
    ROOT / "docs" / "edge_config.md",
)
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
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
    assert named <= set(COMMANDS_BY_WORD)
    for command in named & set(WITH_ACTIONS):
        actions = {
            each for text in code(page) for each in re.findall(rf"{PROGRAM} {command} ([a-z][a-z-]*)", text)
        }
        for action in actions:
            with pytest.raises(SystemExit) as ended:
                build_parser(command).parse_args([command, action, "--help"])
            assert ended.value.code == 0, f"forerun {command} {action}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_every_command_of_a_tutorial_can_be_read(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its options and arguments, as written."""
    lines = "\n".join(re.findall(r"^    (.+)$", page.read_text("utf-8"), re.MULTILINE))
    commands = [
        shlex.split(line, comments=True)[1:]
        for line in lines.replace("\\\n", " ").splitlines()
        if re.match(rf"{PROGRAM} ", line)
    ]
    assert commands or page.stem == "jetson"
    for words in commands:
        try:
            build_parser(words[0]).parse_args(words)
        except SystemExit:
            pytest.fail(f"{name_of(page)}: forerun {shlex.join(words)}: {capsys.readouterr().err}")


def test_every_page_has_a_place_on_the_site() -> None:
    """`SECTIONS` of lab/tools/site.py must name a new one."""
    places = Site("").places
    assert {name_of(page) for page in PAGES} <= places.keys()
    assert len(set(places.values())) == len(places)
