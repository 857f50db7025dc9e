"""docs/edge_config.md tells of every setting what the schema says."""

from __future__ import annotations

import re

import pytest

from edge_client.config.schema import BY_NAME
from forerun.cli import build_parser
from tools.config_reference import PAGE, renewed


def test_the_page_has_the_settings_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text) == text, "docs/edge_config.md is stale: run `python -m tools.config_reference`"
    for entry in BY_NAME.values():
        assert re.search(rf"^\| `{entry.key}` \|", text, re.MULTILINE), entry.name


@pytest.mark.parametrize("text", ["", "<!-- begin: python -m tools.config_reference -->\n", "<!-- end -->\n"])
def test_a_page_without_its_marks_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        renewed(text)


def test_every_setting_that_the_page_names_is_one() -> None:
    sections = {name.partition(".")[0] for name in BY_NAME}
    named = set(re.findall(r"`([a-z]+\.[a-z_0-9]+)`", PAGE.read_text(encoding="utf-8")))
    assert {each for each in named if each.partition(".")[0] in sections} <= set(BY_NAME) | {"edge.toml"}


def test_every_flag_of_the_page_is_one_of_the_command() -> None:
    parse = build_parser().parse_args
    for flag in re.findall(
        r"`(--(?!no-)[a-z0-9-]+)`", PAGE.read_text(encoding="utf-8").split("## All settings")[1]
    ):
        entry = next(each for each in BY_NAME.values() if flag in (each.flag, each.setting.alias))
        value = [] if isinstance(entry.default, bool) else ["1"]
        assert entry.name in vars(parse(["edge", "config", "show", flag, *value]))
