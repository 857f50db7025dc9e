"""`forerun edge install-service`: what it writes where, hardened, valid, and never over another's file."""

import json
import os
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_client.process.paths import SYSTEM
from forerun.cli import main
from forerun.commands import service as service_command
from forerun.commands.service import MARK, UNIT
from lab import demo_models
from tests import wording

pytestmark = pytest.mark.api  # platformdirs, of the `edge` extra

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of the package systemd"
)


@dataclass
class Home:
    """A user's places, and a systemctl that notes how it was called."""

    path: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def unit(self) -> Path:
        return self.path / "config" / "systemd" / "user" / UNIT

    @property
    def called(self) -> list[str]:
        file = self.path / "called"
        return file.read_text().splitlines() if file.exists() else []

    def program(self, name: str, script: str) -> Path:
        file = self.path / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    def config(self, text: str, name: str = "edge.toml") -> str:
        file = self.path / name
        file.write_text(text)
        return f"--config {shlex.quote(str(file))}"

    def printed(self, words: str = "") -> str:
        """What the command would write."""
        assert main(["edge", "install-service", "--print", *shlex.split(words)]) == 0
        return self.capsys.readouterr().out

    def refused(self, words: str) -> None:
        """Hold that the command is refused, and keep its message."""
        assert main(["edge", *shlex.split(words)]) == 2
        wording.keep(self.capsys.readouterr().err)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Home:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(service_command, "HOMES", (tmp_path / "home",))
    (tmp_path / "bin").mkdir()
    found = Home(tmp_path, capsys)
    found.program("systemctl", f'echo "$@" >> {tmp_path}/called')
    return found


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def values(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in lines(text) if line.startswith(f"{key}=")]


@needs_systemd
@pytest.mark.parametrize("words", ["", "--gpu", "--system", "--system --gpu"])
def test_the_unit_leaves_hardly_anything_open(
    words: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`security` finds at most 2.0, where a unit without walls has 9.2; `verify` finds nothing wrong."""
    unit = home.path / UNIT
    unit.write_text(home.printed(words))
    environment = {"PATH": os.defpath, "XDG_RUNTIME_DIR": str(home.path), "SYSTEMD_PAGER": ""}
    scope = [] if "--system" in words else ["--user"]
    for command in (["security", "--offline=true", "--threshold=20"], [*scope, "verify"]):
        done = subprocess.run(
            ["systemd-analyze", *command, str(unit)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_manager_hears_of_readiness_and_watches(home: Home) -> None:
    unit = home.printed(home.config("[service]\nwatchdog = 12.5\nstop_timeout = 7\n"))
    for key, value in {
        "Type": "notify", "NotifyAccess": "main", "WatchdogSec": "12.5", "TimeoutStopSec": "17",
        "Restart": "on-failure", "RestartSec": "2", "LimitCORE": "0",
    }.items():  # fmt: skip
        assert values(unit, key) == [value], key
    assert values(home.printed(home.config("[service]\nwatchdog = 0\n")), "WatchdogSec") == []


def test_its_own_folders_stay_open(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [f"{home.path}/{folder}" for folder in ("state/forerun", "cache/forerun", "cache/huggingface")]
    unit = home.printed()
    assert values(unit, "ReadWritePaths") == own
    assert f"HF_HOME={own[2]}" in values(unit, "Environment")
    assert values(unit, "ProtectHome") == ["read-only"]
    monkeypatch.setenv("HF_HOME", "/srv/hub files")
    assert '"HF_HOME=/srv/hub files"' in values(home.printed(), "Environment")
    system = home.printed("--system")
    assert values(system, "StateDirectory") == values(system, "CacheDirectory") == ["forerun"]
    assert f"HF_HOME={SYSTEM.cache}/huggingface" in values(system, "Environment")
    assert values(system, "ProtectHome") == ["yes"]
    assert values(system, "DynamicUser") == ["yes"]


def test_folders_of_the_configuration_are_writable_and_need_not_be_there(home: Home) -> None:
    config = home.config('[log]\nfile = "/var/log/my logs/edge.log"\n')
    assert '"-/var/log/my logs"' in values(home.printed(config), "ReadWritePaths")
    assert values(home.printed(f"--system {config}"), "ReadWritePaths") == ['"-/var/log/my logs"']


def test_devices_are_open_only_where_asked_for(home: Home) -> None:
    assert values(home.printed(), "PrivateDevices") == ["yes"]
    assert values(home.printed(), "MemoryDenyWriteExecute") == ["yes"]
    unit = home.printed("--gpu")
    assert values(unit, "PrivateDevices") == values(unit, "MemoryDenyWriteExecute") == []
    assert values(unit, "DevicePolicy") == ["closed"]
    assert {"char-nvidia* rw", "/dev/nvmap rw"} <= set(values(unit, "DeviceAllow"))


@pytest.mark.parametrize("words", ["", "--gpu"])
def test_without_namespaces_only_what_needs_them_is_left_out(words: str, home: Home) -> None:
    """A user's manager can take capabilities away in a user namespace only."""
    home.program("unshare", "exit 0")
    full = home.printed(words)
    assert values(full, "CapabilityBoundingSet") == [""]
    assert values(full, "PrivateUsers") == ["yes"]
    home.program("unshare", "exit 1")
    less = home.printed(words)
    assert set(lines(less)) < set(lines(full))
    assert {"NoNewPrivileges=yes", "SystemCallFilter=@system-service"} <= set(lines(less))
    walls = ("Protect", "Private", "ReadWritePaths", "Capability")
    assert not [line for line in lines(less) if line.startswith(walls)]
    assert main(["edge", "install-service"]) == 0
    assert "gives users no namespaces" in home.capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("plain-word", "{}/plain-word"),
        ("with space", '"{}/with space"'),
        ("100%$HOME", "{}/100%%$$HOME"),
        ('a"b\\c', '"{}/a\\"b\\\\c"'),
    ],
)
def test_words_are_written_so_that_systemd_reads_them_back(name: str, written: str, home: Home) -> None:
    (command,) = values(home.printed(home.config("", name)), "ExecStart")
    assert command == f"{sys.executable} -P -m forerun edge --config {written.format(home.path)}"


def test_a_users_unit_is_written_with_its_folders(home: Home) -> None:
    assert main(["edge", "install-service"]) == 0
    assert MARK in home.unit.read_text()
    assert stat.S_IMODE(home.unit.stat().st_mode) == 0o644
    assert stat.S_IMODE((home.path / "state" / "forerun").stat().st_mode) == 0o700
    assert (home.path / "cache" / "huggingface").is_dir()
    out = home.capsys.readouterr().out
    assert f"wrote {home.unit}" in out
    assert f"systemctl --user enable --now {UNIT}" in out
    assert home.called == []
    assert main(["edge", "install-service", "--json"]) == 0  # again: it is its own
    assert json.loads(home.capsys.readouterr().out) == {"written": str(home.unit), "started": False}


def test_now_starts_it_and_uninstall_ends_it(home: Home) -> None:
    assert main(["edge", "install-service", "--now"]) == 0
    assert home.called == ["--user daemon-reload", f"--user enable --now {UNIT}"]
    assert main(["edge", "uninstall-service", "--json"]) == 0
    assert home.called[2:] == [f"--user disable --now {UNIT}"]
    assert not home.unit.exists()
    assert (home.path / "state" / "forerun").is_dir()
    home.capsys.readouterr()
    assert main(["edge", "uninstall-service"]) == 1
    assert "there is no" in home.capsys.readouterr().out


def test_a_manager_that_refuses_is_told(home: Home) -> None:
    systemctl = home.program("systemctl", "echo 'no bus' >&2; exit 1")
    home.refused("install-service --now")
    systemctl.unlink()
    home.refused("install-service --now")
    assert main(["edge", "uninstall-service"]) == 0


def test_anothers_file_is_left_alone(home: Home) -> None:
    home.unit.parent.mkdir(parents=True)
    home.unit.write_text("[Service]\n")
    for words in ("install-service", "uninstall-service"):
        home.refused(words)
        assert home.unit.read_text() == "[Service]\n"


@pytest.mark.parametrize("config", ["[service]\nwatchdog = -1\n", '[api]\nlisten = "unix:/tmp/edge.sock"\n'])
def test_a_configuration_that_cannot_serve_is_refused(config: str, home: Home) -> None:
    home.refused(f"install-service {home.config(config)}")
    assert not home.unit.exists()


def test_a_model_in_a_home_needs_a_named_user(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_command, "HOMES", (home.path,))
    words = "--system " + home.config('[draft]\nmodel = "d.gguf"\n')
    home.refused(f"install-service {words}")
    assert values(home.printed(f"{words} --run-as me"), "ProtectHome") == ["read-only"]
    home.config('[draft]\nmodel = "hf://o/r/d.gguf"\n')
    assert values(home.printed(words), "ProtectHome") == ["yes"]
    home.config('[draft]\nmodel = "hf://o/r/d.gguf"\n[pairs.a.draft]\nmodel = "d.gguf"\n')
    assert main(["edge", "install-service", "--print", *shlex.split(words)]) == 2
    home.refused("install-service --run-as me")


def test_the_machines_unit(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_command, "SYSTEM_UNITS", home.path / "system")
    assert main(["edge", "install-service", "--system", "--run-as", "drafter", "--now"]) == 0
    text = (home.path / "system" / UNIT).read_text()
    assert (values(text, "User"), values(text, "DynamicUser")) == (["drafter"], [])
    assert values(text, "WantedBy") == ["multi-user.target"]
    assert home.called == ["daemon-reload", f"enable --now {UNIT}"]
    assert not (home.path / "state").exists()
    assert main(["edge", "uninstall-service", "--system"]) == 0


def test_on_macos_it_is_an_agent(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("HOME", str(home.path))
    config = home.config("", "a <b> & c.toml")
    assert main(["edge", "install-service", *shlex.split(config)]) == 0
    assert "launchctl bootstrap gui/" in home.capsys.readouterr().out
    file = home.path / "Library" / "LaunchAgents" / "forerun.edge.plist"
    assert MARK in file.read_text()
    agent = plistlib.loads(file.read_bytes())
    assert agent["Label"] == "forerun.edge"
    assert agent["ProgramArguments"] == [
        sys.executable, "-P", "-m", "forerun", "edge", "--config", f"{home.path}/a <b> & c.toml",
    ]  # fmt: skip
    assert agent["RunAtLoad"] is True
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ProcessType"] == "Interactive"
    assert agent["StandardErrorPath"] == agent["StandardOutPath"] == f"{home.path}/state/forerun/edge.log"
    assert (agent["ExitTimeOut"], agent["ThrottleInterval"], agent["Umask"]) == (30, 2, 0o077)
    assert main(["edge", "install-service", "--system"]) == 2
    assert main(["edge", "uninstall-service"]) == 0
    assert not file.exists()


DENIED = """\
import ctypes, mmap, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
    sys.exit("unknown")
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
except PermissionError:
    pass
else:
    sys.exit("not denied")
import grpc
import llguidance
from edge_client.draft.group import DraftGroup, MemberDrafter
from common.llama.library import native_log
from common.llama.runtime import LlamaRuntime
from common.llama.model import LlamaSettings
from common.errors import UserError

with LlamaRuntime(LlamaSettings(sys.argv[1])) as model:
    assert model.tokenize("def f", True)
    MemberDrafter(DraftGroup(model, 1))
    native_log().errors.clear()
try:
    LlamaRuntime(LlamaSettings(sys.argv[2]))  # llama.cpp tells why through a callback
except UserError as error:
    assert "llama.cpp:" in str(error), error
tokenizer = llguidance.LLTokenizer("byte")
grammar = llguidance.LLMatcher.grammar_from_json_schema('{"type": "integer"}')
matcher = llguidance.LLMatcher(tokenizer, grammar)
assert not matcher.is_error()
assert matcher.compute_bitmask()
try:
    grpc.channel_ready_future(grpc.insecure_channel("127.0.0.1:1")).result(timeout=0.05)
except grpc.FutureTimeoutError:
    pass
print("works")
"""


@pytest.mark.llama
@pytest.mark.grammar
@pytest.mark.grpc
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="MemoryDenyWriteExecute is Linux's")
def test_drafting_works_where_written_memory_never_runs(tmp_path: Path) -> None:
    """The kernel's own switch, stricter than systemd's filter: ctypes' callbacks, grammars and gRPC go on."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    done = subprocess.run(
        [sys.executable, "-c", DENIED, str(demo_models.DRAFT_GGUF), str(broken)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.stderr.strip() == "unknown":
        pytest.skip("this kernel has no PR_SET_MDWE (Linux 6.3)")
    assert done.stdout.strip().endswith("works"), done.stderr
