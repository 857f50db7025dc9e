"""Which layer wins, where each value came from, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.config import EdgeConfig, Overlay, load_config
from edge_client.config.schema import ENTRIES, LOCAL_ONLY


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
    assert len(loaded.origins) == len(ENTRIES)


def test_each_layer_beats_those_below_it(tmp_path: Path) -> None:
    """Five settings, each set by one more layer than the one before it."""
    keys = ("max_queue", "request_timeout", "resume_ttl", "max_body_bytes")
    fleet = Overlay("revision 7", {"api": dict.fromkeys(keys, 2000)})
    low = written(tmp_path, "[api]\n" + "".join(f"{key} = 3000\n" for key in keys[1:]), "low.toml")
    high = written(tmp_path, "[api]\n\n" + "".join(f"{key} = 4000\n" for key in keys[2:]), "high.toml")
    env = {"FORERUN_EDGE_API_MAX_BODY_BYTES": "5000"}
    loaded = load_config({}, env, [low, high], fleet)
    api = loaded.config.api
    assert [getattr(api, key) for key in keys] == [2000, 3000.0, 4000.0, 5000]
    assert [str(loaded.origins[f"api.{key}"]) for key in keys] == [
        "fleet revision 7",
        f"{low}:2",
        f"{high}:3",
        "FORERUN_EDGE_API_MAX_BODY_BYTES",
    ]
    loaded = load_config({"api.max_body_bytes": "6000"}, env, [low, high], fleet)
    assert loaded.config.api.max_body_bytes == 6000
    assert str(loaded.origins["api.max_body_bytes"]) == "--api-max-body-bytes"


def test_a_device_pins_a_setting_by_any_layer_of_its_own(tmp_path: Path) -> None:
    fleet = Overlay("revision 1", {"draft": {"policy": "off"}})
    assert load_config({}, {}, [], fleet).config.draft.policy == "off"
    pinned = written(tmp_path, 'draft.policy = "tree"')
    assert load_config({}, {}, [pinned], fleet).config.draft.policy == "tree"
    assert load_config({}, {"FORERUN_EDGE_DRAFT_POLICY": "chain"}, [], fleet).config.draft.policy == "chain"


@pytest.mark.parametrize("name", sorted(LOCAL_ONLY))
def test_what_only_a_device_may_decide_is_refused_to_the_fleet(name: str) -> None:
    section, _, key = name.partition(".")
    default = next(entry.default for entry in ENTRIES if entry.name == name)
    words = refusal(fleet=Overlay("revision 7", {section: {key: default}}))
    assert words.startswith(f"fleet revision 7: {name} can be set on the device only")


def test_who_reaches_and_who_is_trusted_is_the_devices_own() -> None:
    assert {
        "api.listen", "api.token_file", "api.auth", "api.tls_key", "api.allowed_origins", "fleet.broker",
        "fleet.public_key", "fleet.password_file", "verifier.insecure", "verifier.tls_ca", "log.file",
    } <= LOCAL_ONLY  # fmt: skip
    assert not LOCAL_ONLY & {"verifier.addresses", "draft.model", "draft.policy", "draft.sha256"}


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
    config = load_config({"draft.prior": "p.json"}, {}, [written(tmp_path, text)]).config
    assert config.draft.model == str(tmp_path / "m/d.gguf")
    assert (config.api.token_file, config.log.file, config.draft.prior) == (
        "/abs/token",
        "/home/me/log",
        "p.json",
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
        ("[draft]\ncontext = 'many'\n", 2, "draft.context is 'many'; it must be a whole number of tokens in"),
        ("[draft]\ncontext = 1.5\n", 2, "draft.context is 1.5; it must be a whole number"),
        ("[draft]\ncontext = true\n", 2, "draft.context is true; it must be a whole number"),
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


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"api.listen": "0.0.0.0:80"}, "which other machines reach; that needs api.auth and api.tls_cert"),
        ({"api.listen": "[::]:80", "api.tls_cert": "c", "api.tls_key": "k", "api.auth": False}, "needs"),
        ({"api.tls_cert": "c"}, "api.tls_cert and api.tls_key belong together"),
        ({"verifier.tls_key": "c"}, "verifier.tls_cert and verifier.tls_key belong together"),
        ({"verifier.insecure": True, "verifier.tls_ca": "c"}, "drop the one or the other"),
        ({"fleet.broker": "mqtts://b"}, "its topics also need fleet.tenant and fleet.device"),
        ({"fleet.discover": True}, "fleet.discover is true, and no offer would count"),
        ({"fleet.cert": "c"}, "fleet.cert and fleet.key belong together"),
        ({"fleet.password_file": "p"}, "fleet.password_file is given without fleet.username"),
        ({"draft.seats": "65"}, "--draft-seats: draft.seats is 65"),
        ({"verifier.addresses": ["nowhere"]}, "--verifier: verifier.addresses is"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(flags: dict[str, object], words: str) -> None:
    assert words in refusal(flags=flags)


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
    with pytest.raises(UserError, match="TLS files or a token are given"):
        load_config({"verifier.token_file": "t", "verifier.insecure": True}, {}, [])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"draft": {"seats": 0}}, "fleet revision 7: draft.seats is 0; it must be"),
        ({"draft": {"seats": "2"}}, "fleet revision 7: draft.seats is '2'; it must be"),
        ({"draft": {"seat": 2}}, "fleet revision 7: [draft] has no setting 'seat'; did you mean seats?"),
        ({"shell": {"run": "x"}}, "fleet revision 7: there is no section 'shell'"),
        ({"draft": 1}, "fleet revision 7: 'draft' must be a table"),
    ],
)
def test_what_a_fleet_cannot_say_is_refused_by_its_revision(values: dict[str, object], words: str) -> None:
    assert refusal(fleet=Overlay("revision 7", values)).startswith(words)
