"""The pages and the options say what the schema says, and can be read back."""

import argparse
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config.command_line import add_flags, flags_from
from common.config.pages import as_json, as_toml_file, commented_file
from common.config.setting import Entry, as_toml, from_data
from edge_client.settings import HEAD, SCHEMA, EdgeConfig, load_config
from lab.tools.generate import reference


def parsed(*words: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_flags(parser, SCHEMA)
    return flags_from(parser.parse_args(words), SCHEMA)


def test_the_commented_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "edge.toml"
    path.write_text(commented_file(SCHEMA, HEAD), encoding="utf-8")
    loaded = load_config({}, {}, [path])
    assert {origin.layer for origin in loaded.origins.values()} == {"default"}


def test_the_commented_file_without_its_marks_sets_every_default(tmp_path: Path) -> None:
    lines = [line.removeprefix("#") if line[:1] == "#" and line[1:2] != " " else line
             for line in commented_file(SCHEMA, HEAD).splitlines()]  # fmt: skip
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
        path.write_text(as_toml_file(SCHEMA, loaded, origins=origins), encoding="utf-8")
        assert load_config({}, {}, [path]).config == loaded.config


def test_shown_as_json_with_origins() -> None:
    loaded = load_config({"draft.seats": "2"}, {}, [])
    assert as_json(SCHEMA, loaded, origins=False)["draft"]["seats"] == 2
    told = as_json(SCHEMA, loaded, origins=True)["draft"]["seats"]
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


@pytest.mark.parametrize("entry", SCHEMA.entries, ids=lambda entry: str(entry.name))
def test_every_setting_has_a_reason_and_a_line_and_its_flag_sets_it(entry: Entry) -> None:
    given_default = entry.setting.unset if entry.default is None else entry.default
    assert from_data(entry, given_default) == entry.default
    assert entry.setting.meaning
    assert not entry.setting.meaning.endswith(".")
    if entry.kind in (int, float):
        assert entry.setting.unit
        assert entry.setting.low is not None
        assert entry.setting.high is not None
    assert f"| `{entry.field}` |" in reference(SCHEMA)
    text = entry.setting.choices[0] if entry.setting.choices else "text"
    words = [entry.flag] if isinstance(entry.default, bool) else [entry.flag, text]
    assert not entry.flag or entry.name in parsed(*words)
