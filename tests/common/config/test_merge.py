"""Which layer wins, where each value came from, and what is refused with which words."""

from pathlib import Path

import pytest

from common.config.merge import line_of
from common.errors import UserError
from edge_client.settings import FLEET_MAY_SET, SCHEMA, EdgeConfig, load_config
from tests import wording


def written(folder: Path, text: str, name: str = "edge.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(
    *, flags: dict[str, object] | None = None, env: dict[str, str] | None = None, **more: object
) -> str:
    with pytest.raises(UserError) as caught:
        load_config(flags or {}, env or {}, more.get("files", []), more.get("fleet"))  # type: ignore[arg-type]
    return str(caught.value)


def test_without_any_layer_the_defaults_hold() -> None:
    loaded = load_config({}, {"PATH": "/bin", "HOME": "/root"}, [])
    assert loaded.config == EdgeConfig()
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}
    assert len(loaded.origins) == len(SCHEMA.entries)


def test_each_layer_beats_those_below_it(tmp_path: Path) -> None:
    """Four settings, each set by one more layer than the one before it."""
    keys = ("policy", "keep_alive", "power_steps_per_second", "recall")
    fleet: dict[str, object] = {"draft.policy": "tree", "draft.keep_alive": 2, "draft.recall": False}
    fleet["draft.power_steps_per_second"] = 2.0
    low = written(
        tmp_path, "[draft]\nkeep_alive = 3\npower_steps_per_second = 3\nrecall = true\n", "low.toml"
    )
    high = written(tmp_path, "[draft]\n\npower_steps_per_second = 4\nrecall = false\n", "high.toml")
    env = {"FORERUN_EDGE_DRAFT_RECALL": "true"}
    loaded = load_config({}, env, [low, high], fleet)
    draft = loaded.config.draft
    assert [getattr(draft, key) for key in keys] == ["tree", 3.0, 4.0, True]
    assert [str(loaded.origins[f"draft.{key}"]) for key in keys] == [
        "fleet",
        f"{low}:2",
        f"{high}:3",
        "FORERUN_EDGE_DRAFT_RECALL",
    ]
    loaded = load_config({"draft.recall": False}, env, [low, high], fleet)
    assert loaded.config.draft.recall is False
    assert str(loaded.origins["draft.recall"]) == "--recall"


def test_a_device_pins_a_setting_by_any_layer_of_its_own(tmp_path: Path) -> None:
    fleet = {"draft.policy": "off"}
    assert load_config({}, {}, [], fleet).config.draft.policy == "off"
    pinned = written(tmp_path, 'draft.policy = "tree"')
    assert load_config({}, {}, [pinned], fleet).config.draft.policy == "tree"
    assert load_config({}, {"FORERUN_EDGE_DRAFT_POLICY": "chain"}, [], fleet).config.draft.policy == "chain"


@pytest.mark.parametrize("name", [*sorted(SCHEMA.by_name.keys() - FLEET_MAY_SET), "shell.run"])
def test_what_only_a_device_may_decide_is_refused_to_the_fleet(name: str) -> None:
    default = SCHEMA.by_name[name].default if name in SCHEMA.by_name else "x"
    assert name in refusal(fleet={name: default})


def test_lists_and_truths_are_read_from_variables_and_flags() -> None:
    env = {"FORERUN_EDGE_VERIFIER_ADDRESSES": "a:1, b:2", "FORERUN_EDGE_DRAFT_RECALL": "off"}
    config = load_config({"api.allowed_hosts": ["x", "y,z"], "api.page": False}, env, []).config
    assert config.verifier.addresses == ("a:1", "b:2")
    assert config.api.allowed_hosts == ("x", "y", "z")
    assert not config.draft.recall
    assert not config.api.page


def test_paths_of_a_file_are_meant_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = '[draft]\nmodel = "m/d.gguf"\n[api]\ntoken_file = "/abs/token"\n[log]\nfile = "~/log"'
    config = load_config({"verifier.tls_ca": "p.pem"}, {}, [written(tmp_path, text)]).config
    assert config.draft.model == str(tmp_path / "m/d.gguf")
    assert (config.api.token_file, config.log.file, config.verifier.tls_ca) == (
        "/abs/token",
        "/home/me/log",
        "p.pem",
    )
    hub = written(tmp_path, '[draft]\nmodel = "hf://a/b/c.gguf"')
    assert load_config({}, {}, [hub]).config.draft.model == "hf://a/b/c.gguf"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[drft]\n", 1, "there is no section 'drft'; did you mean draft?"),
        ("\n[draft]\ncontxt = 1\n", 3, "[draft] has no setting 'contxt'; did you mean context?"),
        ("listen = 'x'\n", 1, "'listen' stands outside its section; did you mean [api]?"),
        ("draft = 1\n", 1, "'draft' must be a table: write [draft]"),
        ("[draft]\ncontext = 'many'\n", 2, "draft.context is 'many'; it must be auto or a whole number of"),
        ("[draft]\ncontext = 1.5\n", 2, "draft.context is 1.5; it must be auto or a whole number"),
        ("[draft]\ncontext = true\n", 2, "draft.context is true; it must be auto or a whole number"),
        ("[draft]\nrecall = 1\n", 2, "draft.recall is 1; it must be true or false"),
        ("[draft]\nkeep_alive = nan\n", 2, "draft.keep_alive is nan; it must be a number of seconds in"),
        ("[draft]\nseats = 0\n", 2, "draft.seats is 0; it must be a whole number of completions in [1, 64]"),
        ("[draft]\npolicy = 'magic'\n", 2, "growth policy 'magic' is unknown; choose one of"),
        ("[draft]\nsha256 = 'abc'\n", 2, "64 hex digits"),
        ("[verifier]\naddresses = 'a:1'\n", 2, "it must be a list of texts, each HOST:PORT"),
        ("[verifier]\naddresses = []\n", 2, "it must name at least one HOST:PORT"),
        ("[verifier]\naddresses = ['a:1', 'a:1']\n", 2, "it must name each address once"),
        ("[verifier]\nfallback = 'guess'\n", 2, "it must be wait, draft or fail"),
        ("[api]\nlisten = 'unix:run/x'\n", 2, "must be absolute"),
        ("[api]\nlisten = '8080'\n", 2, "it must be HOST:PORT, for example 127.0.0.1:8080, or unix:PATH"),
        ("[api]\nallowed_hosts = ['*']\n", 2, "'*' is no host name"),
        ("[api]\nallowed_origins = ['*']\n", 2, "'*' is no web origin"),
        ("[api]\nallowed_origins = ['https://a/b']\n", 2, "without a path"),
        ("[fleet]\ntenant = '#'\n", 2, "fleet.tenant is '#'; it must be letters, digits"),
        ("[fleet]\nbroker = 'http://x'\n", 2, "it must be mqtts://HOST:PORT"),
        ("[fleet]\nbroker = 'mqtt://x:99999'\n", 2, "its port must be a number up to 65535"),
    ],
)  # fmt: skip
def test_what_a_file_cannot_say_is_told_with_its_line(
    text: str, line: int, words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    found = refusal(files=[path])
    assert found.startswith(f"{path}:{line}: ")
    assert words in found


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"FORERUN_EDGE_DRAFT_CONTEX": "1"}, "FORERUN_EDGE_DRAFT_CONTEX is no setting; did you mean"),
        ({"FORERUN_EDGE_DRAFT_CONTEXT": "x"}, "FORERUN_EDGE_DRAFT_CONTEXT: draft.context is 'x'; it must be"),
        ({"FORERUN_EDGE_DRAFT_RECALL": "perhaps"}, "draft.recall is 'perhaps'; it must be true or false"),
        ({"FORERUN_EDGE_LOG_LEVEL": "loud"}, "it must be debug, info, warning or error"),
    ],
)
def test_what_a_variable_cannot_say_is_told(env: dict[str, str], words: str) -> None:
    assert words in refusal(env=env)


BROKER = {"fleet.broker": "mqtt://b", "fleet.tenant": "acme", "fleet.device": "pi-1"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"api.listen": "0.0.0.0:80"}, "which other machines reach; that needs api.auth and api.tls_cert"),
        ({"api.listen": "[::]:80", "api.tls_cert": "c", "api.tls_key": "k", "api.auth": False}, "needs"),
        ({"api.tls_cert": "c"}, "api.tls_cert needs tls_key; give both"),
        ({"verifier.tls_key": "c"}, "verifier.tls_key needs tls_cert; give both"),
        ({"verifier.insecure": True, "verifier.tls_ca": "c"}, "drop the one or the other"),
        ({"fleet.broker": "mqtts://b"}, "fleet.broker needs tenant"),
        ({"fleet.cert": "c"}, "fleet.cert needs key"),
        ({"fleet.password_file": "p"}, "fleet.password_file needs username"),
        ({"fleet.device": "fleet"}, "fleet.device"),
        ({**BROKER, "fleet.ca": "c"}, "no effect without TLS"),
        ({**BROKER, "fleet.username": "u", "fleet.password_file": "p"}, "in the clear"),
        ({"draft.seats": "65"}, "--draft-seats: draft.seats is 65"),
        ({"verifier.addresses": ["nowhere"]}, "--verifier: verifier.addresses is"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(flags: dict[str, object], words: str) -> None:
    assert words in refusal(flags=flags)


@pytest.mark.parametrize("broker", ["mqtts://b", "MQTTS://b", "mqtt://127.0.0.1", "mqtt://[::1]:1883"])
def test_a_brokers_password_travels_under_tls_or_on_this_machine(broker: str) -> None:
    flags = {**BROKER, "fleet.broker": broker, "fleet.username": "u", "fleet.password_file": "p"}
    assert load_config(flags, {}, []).config.fleet.password_file == "p"


def test_no_refusal_shows_a_password(tmp_path: Path) -> None:
    for text in (
        "[fleet]\nbroker = 'mqtt://me:canary@host'",
        "[fleet]\npassword = 'canary'",
        "[fleet]\nbroker = ['mqtt://me:canary@host']",
        "[fleet]\nbroker = 'mqtt://me:canary@host",
        "password = 'canary'",
    ):
        assert "canary" not in refusal(files=[written(tmp_path, text)])
    assert "canary" not in refusal(env={"FORERUN_EDGE_FLEET_PASSWORD": "canary"})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[draft\n", "is not TOML in UTF-8: Expected ']' at the end of a table declaration (at line 1"),
        (b"\xff", "is not TOML in UTF-8"),
        (b"#" * (2 << 20), "is too large for a configuration"),
    ],
)
def test_what_is_no_configuration_is_told(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "edge.toml"
    path.write_bytes(data)
    assert words in refusal(files=[path])


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    assert refusal(files=[tmp_path / "none.toml"]).endswith(
        "none.toml cannot be read: No such file or directory"
    )


def test_a_verifier_elsewhere_is_spoken_to_with_tls() -> None:
    section = load_config({}, {}, []).config.verifier
    assert section.is_plain("127.0.0.1:1")
    assert section.is_plain("[::1]:1")
    assert section.is_plain("localhost:1")
    assert not section.is_plain("10.0.0.1:1")
    assert load_config({"verifier.insecure": True}, {}, []).config.verifier.is_plain("10.0.0.1:1")
    assert not load_config({"verifier.tls_ca": "c"}, {}, []).config.verifier.is_plain("127.0.0.1:1")
    assert not load_config({"verifier.token_file": "t"}, {}, []).config.verifier.is_plain("127.0.0.1:1")


def test_a_token_is_never_sent_in_plain_text() -> None:
    with wording.raises(UserError):
        load_config({"verifier.token_file": "t", "verifier.insecure": True}, {}, [])


@pytest.mark.parametrize(
    "values", [{"draft.keep_alive": -2}, {"draft.keep_alive": "2"}, {"draft.policy": "wild"}, {"draft": 1}]
)
def test_what_a_fleet_cannot_say_is_refused_by_its_name(values: dict[str, object]) -> None:
    (name,) = values
    assert name in refusal(fleet=values)


TEXT = """\
# draft.seats = 1
log.level = "debug"
[draft]
seats = 2
  "context" = 3
[ api ]
seats = 4
text = '''
'''
"""


@pytest.mark.parametrize(
    ("section", "key", "line"),
    [
        ("draft", "seats", 4),
        ("draft", "context", 5),
        ("api", "seats", 7),
        ("draft", "", 3),
        ("api", "", 6),
        ("log", "level", 2),
        ("log", "", 2),
        ("draft", "none", 0),
        ("fleet", "", 0),
    ],
)
def test_a_key_is_found_in_its_section(section: str, key: str, line: int) -> None:
    assert line_of(TEXT, section, key) == line
