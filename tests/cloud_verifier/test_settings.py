"""A flag, a variable and a file give a verifier the equal configuration, and errors name the origin."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.settings import SCHEMA, VerifierConfig
from common.acceptance import AcceptanceRule
from common.config.command_line import flags_from
from common.config.merge import Loaded, load_config
from common.config.setting import Entry, as_toml
from common.errors import UserError
from common.wire.describe import Description, decode_description, encode_description
from forerun.cli import build_parser
from forerun.commands.verify import config_of
from tests.cloud_verifier.configured import configured

PARSER = build_parser("verify")
TEXTS = {
    "listen": "127.0.0.1:0",
    "http": "[::1]:9464",
    "tenant_certificate": "example.org",
    "tensor_split": "3,1",
}
WITH: dict[str, dict[str, Any]] = {
    "tls_cert": {"tls_key": "k"},
    "tls_key": {"tls_cert": "c"},
    "tls_client_ca": {"tls_cert": "c", "tls_key": "k"},
    "judge": {"allow_rule": ["judge"]},
    "tenant_certificate": {"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"},
    "secret_file": {"tls_cert": "c", "tls_key": "k"},
    "token_audience": {"token_keys": "keys"},
    "token_keys": {"token_audience": "us"},
    "denied": {"tenant_header": "x"},
    "training_log": {"tenant_limits": "x"},
    "training_log_key": {"tenant_limits": "x", "training_log": "x"},
    "deterministic": {"threads": "1"},
    "gpu_layers": {"model": "target.gguf"},
    "tensor_split": {"model": "target.gguf"},
}
"""What some settings cannot be given without."""

SHARES = "x", "1;2", "-1,2", "inf"


def values_of(entry: Entry) -> st.SearchStrategy[Any]:
    """Values that the setting can have alone, as a file has them."""
    said = entry.setting
    if entry.kind is bool:
        return st.booleans()
    if entry.kind is int:
        return st.integers(int(said.low or 0), 2**30)
    if entry.kind is float:
        high = min(said.high or 1e6, 1e6)
        return st.floats(said.low or said.above or 0.0, high, exclude_min=said.above is not None)
    if entry.kind is tuple:
        rules = [rule.title for rule in AcceptanceRule if rule is not AcceptanceRule.JUDGE]  # not alone
        return st.lists(st.sampled_from(rules), min_size=1, max_size=3)
    if said.choices:
        return st.sampled_from(said.choices)
    return st.just(TEXTS.get(entry.field, "word"))


def as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else as_toml(value).strip('"')


def flag_words(entry: Entry, value: Any) -> list[str]:
    """The value on a command line; a switch that is off by default has no word for off."""
    if entry.kind is bool:
        off = [] if entry.default is False else [f"--no-{entry.field.replace('_', '-')}"]
        return [entry.flag] if value else off
    return [f"{entry.flag}={each}" for each in (value if isinstance(value, list) else [as_text(value)])]


def by_flags(*words: str) -> Loaded[VerifierConfig]:
    options = PARSER.parse_args(["verify", *words])
    return load_config(SCHEMA, flags_from(options, SCHEMA), {}, [])


@pytest.mark.parametrize("entry", SCHEMA.entries, ids=lambda entry: str(entry.field))
@given(data=st.data())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_way_to_give_a_setting_gives_the_equal_config(
    entry: Entry, tmp_path: Path, data: st.DataObject
) -> None:
    value = data.draw(values_of(entry))
    more = {**WITH.get(entry.field, {}), entry.field: value}
    by_key = {each.field: each for each in SCHEMA.entries}
    environment = load_config(
        SCHEMA, {}, {by_key[key].variable: as_text(each) for key, each in more.items()}, []
    )
    words = [word for key, each in more.items() for word in flag_words(by_key[key], each) if entry.flag]
    flags = by_flags(*words) if entry.flag else environment
    path = tmp_path / "verifier.toml"
    tables = (
        f"{by_key[key].section}.{key} = {as_toml(tuple(each) if isinstance(each, list) else each)}\n"
        for key, each in more.items()
    )
    path.write_text("".join(tables).replace('= "1"', "= 1"), encoding="utf-8")
    file = load_config(SCHEMA, {}, {}, [path])
    found = getattr(getattr(flags.config, entry.section), entry.field)
    assert found == (tuple(value) if isinstance(value, list) else entry.kind(value))
    if not entry.setting.is_path:  # those of a file are meant from its folder
        assert flags.config == environment.config
    assert getattr(getattr(file.config, entry.section), entry.field) == (
        tmp_path / value if entry.setting.is_path else found
    )
    assert (environment.origins[entry.name].layer, file.origins[entry.name].layer) == ("environment", "file")


def test_each_layer_beats_those_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "verifier.toml"
    path.write_text("[limits]\nmax_rows = 1\nmax_sessions = 1\nprefill_chunk = 1\n", encoding="utf-8")
    monkeypatch.setenv("FORERUN_VERIFY_MAX_SESSIONS", "2")
    monkeypatch.setenv("FORERUN_VERIFY_PREFILL_CHUNK", "2")
    limits = configured("--config", str(path), "--prefill-chunk", "3").limits
    assert (limits.max_rows, limits.max_sessions, limits.prefill_chunk) == (1, 2, 3)
    assert configured().limits.max_sessions == 2


@pytest.mark.parametrize(
    ("words", "environment", "text", "place"),
    [
        (["--slots", "many"], {}, "", "--slots: target.slots"),
        (["--allow-rule", "any"], {}, "", "--allow-rule: server.allow_rule"),
        ([], {"FORERUN_VERIFY_GRASE": "1"}, "", "the environment variable FORERUN_VERIFY_GRASE"),
        ([], {}, "[limits]\n\nmax_rows = 0\n", "{}:3: limits.max_rows"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(
    words: list[str],
    environment: dict[str, str],
    text: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "verifier.toml"
    path.write_text(text, encoding="utf-8")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        config_of(build_parser("verify").parse_args(["verify", "--config", str(path), *words]))
    assert str(caught.value).startswith(place.format(path))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--deterministic"], ["--deterministic", "--threads"]),
        (["--deterministic", "--device=cuda", "--attention=triton"], ["--deterministic", "--attention"]),
        (["--tensor-parallel", "--deterministic", "--threads=1"], ["deterministic", "tensor_parallel"]),
        (["--tls-cert=c"], ["tls_cert", "tls_key"]),
        (["--allow-rule=judge"], ["--judge", "--allow-rule"]),
        (["--allow-rule=reflective", "--tensor-parallel"], ["--allow-rule reflective", "--tensor-parallel"]),
        (["--allow-rule=reflective", "--model=t.gguf"], ["--allow-rule reflective"]),
        (["--judge=judge.json"], ["--judge", "--allow-rule"]),
    ],
)
def test_what_contradicts_itself_is_named(words: list[str], names: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        configured(*words)
    assert [name for name in names if name not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"SHARED_TEXTS": "1", "RECALL": "false"}, ["shared_texts", "recall"]),
        ({"MODEL": "folder", "TENSOR_SPLIT": "1,1"}, ["tensor_split"]),
        *(({"MODEL": "target.gguf", "TENSOR_SPLIT": wrong}, ["tensor_split"]) for wrong in SHARES),
    ],
)
def test_settings_without_a_flag_are_checked_alike(given: dict[str, str], names: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_config(SCHEMA, {}, {SCHEMA.prefix + name: value for name, value in given.items()}, [])
    assert [name for name in names if name not in str(caught.value)] == []


def test_the_limits_are_those_of_the_scheduler_but_guessing_is_on() -> None:
    assert configured().scheduler == SchedulerConfig(recall=True)


def test_a_word_stands_for_none() -> None:
    assert configured("--slots", "auto").target.slots is None
    assert configured("--slots", "7").target.slots == 7
    assert configured("--tls-cert=c", "--tls-key=k", "--tls-client-ca=a", "--tenant-certificate") == (
        configured("--tls-cert=c", "--tls-key=k", "--tls-client-ca=a", "--tenant-certificate=")
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("target.gguf", ["--device", "cuda"]),
        ("target.gguf", ["--dtype", "bfloat16"]),
        ("target.gguf", ["--drafter", "exit"]),
        ("TARGET.GGUF", ["--attention", "triton"]),
        ("folder", ["--gpu-layers", "3"]),
    ],
)
def test_a_setting_of_the_other_engine_is_refused(model: str, words: list[str]) -> None:
    with pytest.raises(UserError, match=words[0]):
        configured(*words, model=model)


def test_a_gguf_target_is_named_after_its_file() -> None:
    assert configured(model="models/Some-8B.gguf").target.served_name == "Some-8B"
    assert configured("--name", "x", model="models/Some-8B.gguf").target.served_name == "x"


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), "two\nlines", "x" * 500, "\u202e"])
def test_any_name_of_a_file_can_be_told_to_edges(name: str, tmp_path: Path) -> None:
    for target in (
        configured(model=f"models/{name}.gguf").target,
        configured(model=f"models/{name}").target,
        configured("--name", name, model="models/a.gguf").target,
    ):
        told = encode_description(Description(target.served_name, 8, 8, b"x"))
        assert decode_description(told).model == target.served_name


@pytest.mark.parametrize(
    ("words", "chunk"),
    [
        ([], 256),
        (["--device", "cuda:1"], 1024),
        (["--device", "cuda", "--deterministic"], 256),
        (["--device", "cuda", "--prefill-chunk", "300"], 300),
        (["--prefill-chunk", "auto"], 256),
    ],
)
def test_prompts_are_read_in_chunks_for_the_device(words: list[str], chunk: int) -> None:
    assert configured(*words).scheduler.chunk == chunk
