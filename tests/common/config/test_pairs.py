"""Tables of named pairs take the rest from the sections above them, and errors name their place."""

import json
import tomllib
from pathlib import Path

import pytest

from common.config.pages import as_json, as_toml_file
from common.errors import UserError
from edge_client.settings import SCHEMA, load_config

TWO = """\
[draft]
model = "usual.gguf"
seats = 4

[pairs.coder.draft]
model = "coder.gguf"
[pairs.coder.verifier]
addresses = ["127.0.0.1:50061"]

[pairs.prose]
verifier.addresses = ["127.0.0.1:50062"]

[pairs.same]
"""


def written(folder: Path, text: str, name: str = "edge.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_pair_has_its_own_settings_and_those_of_the_sections_above(tmp_path: Path) -> None:
    loaded = load_config(
        {"draft.threads": "3"}, {}, [path := written(tmp_path, TWO)], {"draft.recall": False}
    )
    pairs = loaded.config.each_pair
    assert list(pairs) == ["coder", "prose", "same"]
    assert [Path(each.draft.model).name for each in pairs.values()] == ["coder.gguf"] + 2 * ["usual.gguf"]
    assert [each.verifier.addresses[0][-2:] for each in pairs.values()] == ["61", "62", "51"]
    assert {(each.draft.seats, each.draft.threads, each.draft.recall) for each in pairs.values()} == {
        (4, 3, False)
    }
    assert Path(pairs["coder"].draft.model).parent == tmp_path, "beside the file"
    assert str(loaded.origins["pairs.coder.draft.model"]) == f"{path}:6"
    assert str(loaded.origins["pairs.prose.verifier.addresses"]) == f"{path}:11"


def test_a_later_file_changes_one_setting_of_a_pair(tmp_path: Path) -> None:
    later = written(tmp_path, "[pairs.prose.draft]\nseats = 2\n[pairs.new]\n", "later.toml")
    pairs = load_config({}, {}, [written(tmp_path, TWO), later]).config.pairs
    assert list(pairs) == ["coder", "prose", "same", "new"]
    assert pairs["prose"].draft.seats == 2
    assert pairs["prose"].verifier.addresses == ("127.0.0.1:50062",)


@pytest.mark.parametrize("origins", [False, True])
def test_what_is_shown_is_a_file_that_says_the_same(tmp_path: Path, origins: bool) -> None:
    loaded = load_config({}, {}, [written(tmp_path, TWO)])
    shown = as_toml_file(SCHEMA, loaded, origins=origins)
    assert load_config({}, {}, [written(tmp_path, shown, "shown.toml")]).config == loaded.config
    told = json.dumps(as_json(SCHEMA, loaded, origins=False)["pairs"])
    assert json.loads(told) == tomllib.loads(shown)["pairs"]


@pytest.mark.parametrize(
    ("text", "place", "named"),
    [
        ("pairs = 3", ":1", "pairs.NAME"),
        ("[[pairs]]", "", "pairs.NAME"),
        ("[pairs]\na = 1", ":2", "pairs.a"),
        ("[pairs.a]\ndraft = 3", ":2", "pairs.a.draft"),
        ("[pairs.a.api]", ":1", "pairs.a.api"),
        ("[pairs.a]\nmodel = 'x'", ":2", "[pairs.a.draft]"),
        ("[pairs.a.draft]\nseat = 1", ":2", "[pairs.a.draft]"),
        ("[draft]\nseats = 2\n[pairs.a.draft]\nseats = 0", ":4", "pairs.a.draft.seats is 0"),
        ("[pairs.a.draft]\ncontext = 'x'", ":2", "pairs.a.draft.context"),
        ("[pairs.a.verifier]\ninsecure = true\ntls_ca = 'x'", "", "[pairs.a.verifier]"),
        ("[pairs.default]", "", "[pairs.default]"),
        ("[pairs.forerun]", "", "[pairs.forerun]"),
        ("[pairs.'a.b']", "", "pairs.a.b"),
        ("[pairs.'']", "", "[pairs.]"),
    ],
)
def test_errors_name_the_place_and_the_table(tmp_path: Path, text: str, place: str, named: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_config({}, {}, [path])
    assert f"{path}{place}" in str(caught.value) or not place
    assert named in str(caught.value)


def test_pairs_stand_in_files_only() -> None:
    with pytest.raises(UserError):
        load_config({}, {"FORERUN_EDGE_PAIRS_A_DRAFT_SEATS": "1"}, [])
    with pytest.raises(UserError):
        load_config({}, {}, [], {"pairs.a.draft.recall": False})
