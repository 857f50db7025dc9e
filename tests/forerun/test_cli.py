"""The command line: help that a newcomer understands, errors that are sentences."""

import ast
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

import pytest

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.server.serving import identity_of, info_of
from cloud_verifier.settings import IdentitySection
from common.acceptance import AcceptanceRule
from common.config.command_line import flags_from
from common.errors import UserError
from common.sampling import SamplingDefaults
from edge_client.settings import SCHEMA
from forerun.cli import COMMANDS, build_parser, extras_of, main, own_version, reported
from forerun.commands import verify
from forerun.options import joined_address
from schemes.rules.trained_judge import Judge
from tests import wording
from tests.cloud_verifier.configured import configured
from tests.worlds.models import TinyTarget

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["dotcor"], "doctor"),
        (["edge", "statsu"], "status"),
        (["edge", "config", "shwo"], "show"),
        (["edge", "--verifer", "127.0.0.1:1"], "--verifier"),
        (["verify", "--modle", "x"], "--model"),
        (["chat", "--temprature", "1"], "--temperature"),
        (["edge", "-md", "x"], "--draft"),
        (["edge", "--max-model-len", "9"], "--context"),
        (["serve", "--max-model-len", "9"], "--slots"),
        (["run"], "chat"),
        (["start"], "edge"),
        (["stop"], "edge stop"),
        (["logs"], "edge logs"),
    ],
)
def test_a_mistyped_word_is_met_with_the_one_that_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"did you mean {meant}?" in error
    assert "usage:" not in error


def test_the_help_names_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].isalpha()]
    rare = next(line for line in lines if line.startswith("Rarer: "))
    assert sorted(named + re.findall(r"\w+", rare)[1:]) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("words", "model", "address"),
    [
        (["serve", "here"], "here", "127.0.0.1:50051"),
        (["verify", "-m", "here", "--port", "7"], "here", "127.0.0.1:7"),
        (["serve", "--host", "::1", "--model", "here"], "here", "[::1]:50051"),
        (["serve", "here", "--listen", "1.2.3.4:5", "--port", "7"], "here", "1.2.3.4:7"),
    ],
)
def test_a_verifier_takes_the_words_of_other_servers(words: list[str], model: str, address: str) -> None:
    config = verify.config_of(build_parser("verify").parse_args(words))
    assert config.target.model == model
    assert config.server.listen == address


def test_two_targets_are_refused() -> None:
    with pytest.raises(UserError, match="one"):
        verify.config_of(build_parser("verify").parse_args(["serve", "one", "-m", "two"]))


def test_the_daemon_listens_where_host_and_port_say() -> None:
    given = build_parser("edge").parse_args(["edge", "--host", "0.0.0.0", "--port", "9", "-v"])
    assert joined_address(given, "api.listen", "127.0.0.1:8080") == "0.0.0.0:9"
    assert flags_from(given, SCHEMA) == {"log.level": "debug"}


def test_the_other_part_of_an_address_stays_as_configured(tmp_path: Path) -> None:
    (file := tmp_path / "verifier.toml").write_text('[server]\nlisten = "10.0.0.5:6000"\n')
    for words, address in (
        (["--port", "7"], "10.0.0.5:7"),
        (["--host", "::"], "[::]:6000"),
        ([], "10.0.0.5:6000"),
    ):
        given = build_parser("verify").parse_args(["serve", "here", "--config", str(file), *words])
        assert verify.config_of(given).server.listen == address
    given = build_parser("edge").parse_args(["edge", "--port", "9"])
    with pytest.raises(UserError):
        joined_address(given, "api.listen", "unix:here")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_lines(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_ARGCOMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "word"), [("forerun simu", "simulate"), ("forerun edge --draft-sh", "--draft-sha256")]
)
def test_words_that_may_follow_are_told_to_a_shell(line: str, word: str) -> None:
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    command = ["sh", "-c", f"{shlex.quote(sys.executable)} -m forerun 8>&1 9>&2 1>/dev/null"]
    told = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert word in told.stdout.replace("\v", " ").split()


def test_edge_start_is_edge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "start", "--draft", "nothing.gguf"]) == 2
    assert "nothing.gguf" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"forerun {own_version()}\n"


def test_a_package_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["verify", "--model", "x", "--check"]) == 2
    wording.keep(capsys.readouterr().err.splitlines()[-1])


def test_a_verifier_without_torch_is_named_an_extra_without_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of GGUF targets, whose tokens need pyjwt."""
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.delitem(sys.modules, "cloud_verifier.identity.token_identity", raising=False)
    section = IdentitySection(token_keys=tmp_path / "keys.json", token_audience="a")
    assert reported(lambda: identity_of(section)) == 2  # type: ignore[arg-type,return-value]
    wording.keep(capsys.readouterr().err)


def test_on_a_system_without_unix_wsl_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python for Windows has no `resource`, among others."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert reported(lambda: import_module("resource")) == 2  # type: ignore[arg-type,return-value]
    wording.keep(capsys.readouterr().err)


def imported_by(package: str) -> Iterator[str]:
    """Names of the modules that the sources of a package import, dotted."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (name.name for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module


def installed_by(extra: str) -> set[str]:
    """Names of the distributions of an extra, of those within it, and of what every installation has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    within = [name for line in lines for name in re.findall(r"^forerun\[(.*)\]", line)]
    names = {re.split(r"[^\w.-]", line)[0].lower() for line in lines}
    crypto = {"cryptography"} if "pyjwt[crypto]" in "".join(lines) else set[str]()
    triton = {"triton"} if "torch" in names else set[str]()  # the CUDA wheels bring it
    needed = (
        line for name in names - {"forerun"} for line in metadata.requires(name) or () if "extra" not in line
    )
    below = {re.split(r"[^\w.-]", line)[0].lower() for line in needed}
    return names.union(crypto, triton, below, *(installed_by(each) for each in within))


def test_every_missing_module_is_named_with_extras_that_install_it() -> None:
    """Of each module that a package of the wheel imports and that no package of ours is."""
    shipped = ("edge_client", "cloud_verifier", "common", "forerun", "schemes", "training", "simulator")
    holds = metadata.packages_distributions()
    imported = {each for package in shipped for each in imported_by(package)}
    checked = 0
    for module in sorted(imported):
        top = module.partition(".")[0]
        if top in {*sys.stdlib_module_names, *shipped, "setuptools"} or top not in holds:  # it builds wheels
            continue
        own = "google.rpc" if module.startswith("google.rpc") else top
        distributions = {"googleapis-common-protos"} if own == "google.rpc" else {*holds[top]}
        for extra in extras_of(module if own == top else own):
            checked += 1
            assert {each.lower() for each in distributions} & installed_by(extra), (module, extra)
    assert checked > 40


def test_help_is_a_word_and_rare_options_follow_in_a_group_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = list[str]()
    for words in (["help", "edge"], ["edge", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    common, _, advanced = shown[0].partition("advanced options:")
    assert "--draft" in common
    assert "--draft-seats" in advanced


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ([], "coupled rejection block specinfer spectr spectr-ot"),
        (
            ["--allow-rule", "bild", "--allow-rule", "typical"],
            "coupled rejection block specinfer spectr spectr-ot bild typical",
        ),
    ],
)
def test_lossy_rules_are_allowed_by_name_only(options: list[str], rules: str) -> None:
    assert " ".join(rule.title for rule in configured(*options).scheduler.rules) == rules


def test_a_judge_comes_with_its_permission_and_is_read_before_the_target(tmp_path: Path) -> None:
    path, judge = tmp_path / "judge.json", Judge((0.0,) * 4, (1.0,) * 4, (0.0,) * 4, -1.0, 0.5)
    words = ["--allow-rule", "judge", "--judge", str(path)]
    with pytest.raises(UserError, match=r"judge\.json"):
        _ = configured(*words).scheduler
    path.write_text(judge.to_json(), encoding="utf-8")
    limits = configured(*words).scheduler
    assert limits.judge == judge
    assert AcceptanceRule.JUDGE in limits.rules


def test_a_verifier_can_be_told_to_advise_no_sampling_values() -> None:
    advice = SamplingDefaults(temperature=0.7)
    engine = TinyTarget(TargetInfo("tiny", 7, 64, 64, (), b"", sampling_defaults=advice))
    for words, told in (([], advice), (["--sampling-defaults", "openai"], SamplingDefaults())):
        assert info_of(configured(*words), engine).sampling_defaults == told


def test_an_address_in_use_is_told_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["verify", "--model", str(tmp_path), "--listen", f"127.0.0.1:{port}"]) == 2
    wording.keep(capsys.readouterr().err)


def test_help_needs_no_package_of_a_verifier_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("jwt", "cryptography"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "forerun.commands.dev_certs", raising=False)
    assert build_parser().format_help()
    command = ["certs", "token", "--key", "k", "--tenant", "t", "--audience", "a"]
    assert main(command) == 2
    assert "forerun[verifier]" in capsys.readouterr().err
