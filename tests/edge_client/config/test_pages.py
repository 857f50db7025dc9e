"""The pages and the options say what the schema says, and can be read back."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.config import EdgeConfig, load_config
from edge_client.config.flags import add_flags, flags_from
from edge_client.config.pages import as_json, as_toml_file, commented_file, reference
from edge_client.config.schema import ENTRIES, SECTIONS
from edge_client.config.values import as_toml, from_data


def parsed(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return flags_from(parser.parse_args(words))


def test_the_commented_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "edge.toml"
    path.write_text(commented_file(), encoding="utf-8")
    loaded = load_config({}, {}, [path])
    assert {origin.layer for origin in loaded.origins.values()} == {"default"}


def test_the_commented_file_without_its_marks_sets_every_default(tmp_path: Path) -> None:
    lines = [line.removeprefix("#") if line[:1] == "#" and line[1:2] != " " else line
             for line in commented_file().splitlines()]  # fmt: skip
    path = tmp_path / "edge.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    loaded = load_config({}, {}, [path])
    assert loaded.config == EdgeConfig()
    assert {origin.layer for origin in loaded.origins.values()} == {"file"}


def test_what_is_shown_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    flags: dict[str, object] = {
        "verifier.addresses": ["a:1", "b:2"],
        "fleet.username": 'a"b\\c\x7fü',
        "api.page": False,
    }
    loaded = load_config(flags, {}, [])
    for origins in (False, True):
        path = tmp_path / "edge.toml"
        path.write_text(as_toml_file(loaded, origins=origins), encoding="utf-8")
        assert load_config({}, {}, [path]).config == loaded.config


def test_shown_as_json_with_origins() -> None:
    loaded = load_config({"draft.seats": "2"}, {}, [])
    assert as_json(loaded, origins=False)["draft"]["seats"] == 2
    told = as_json(loaded, origins=True)["draft"]["seats"]
    assert told == {"value": 2, "layer": "flag", "place": "--draft-seats"}


@given(st.text().filter(lambda text: not any("\ud800" <= each <= "\udfff" for each in text)))
def test_any_text_survives_toml(text: str) -> None:
    assert tomllib.loads(f"x = {as_toml(text)}")["x"] == text


def test_only_given_flags_are_told() -> None:
    assert parsed() == {}
    assert parsed("--draft", "m.gguf", "--no-draft-recall", "--verifier", "a:1", "--verifier", "b:2") == {
        "draft.model": "m.gguf",
        "draft.recall": False,
        "verifier.addresses": ["a:1", "b:2"],
    }


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry.name))
def test_every_setting_has_a_reason_a_flag_and_a_line(entry: object) -> None:
    from edge_client.config.setting import Entry

    assert isinstance(entry, Entry)
    assert from_data(entry, entry.default) == entry.default
    assert entry.setting.meaning
    assert not entry.setting.meaning.endswith(".")
    if isinstance(entry.default, int | float) and not isinstance(entry.default, bool):
        assert entry.setting.unit
        assert entry.setting.low is not None
        assert entry.setting.high is not None
    assert f"| `{entry.key}` |" in reference()
    given = [entry.flag] if isinstance(entry.default, bool) else [entry.flag, "text"]
    assert entry.name in parsed(*given)


def test_every_class_of_a_section_is_described() -> None:
    assert all(f"### [{name}]" in reference() for name in SECTIONS)
