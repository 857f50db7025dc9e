"""`forerun edge install-service`: what it writes where, hardened, valid, and never over another's file."""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.process.paths import SYSTEM, EdgePaths
from edge_client.settings import ServiceSection
from forerun.cli import main
from forerun.commands import service as service_command
from forerun.commands.service import DEVICES, MARK, UNIT, ServicePlan, launchd_plist, systemd_unit
from lab import demo_models
from tests import wording

pytestmark = pytest.mark.api  # platformdirs, of the `edge` extra

OWN = EdgePaths(*(Path("/h") / name for name in ("config", "state", "cache", "models", "run")))
COMMAND = (sys.executable, "-P", "-m", "forerun", "edge")

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of the package systemd"
)


def plan(*, system: bool = False, device: str = "", **more: object) -> ServicePlan:
    settings = {"command": COMMAND, "service": ServiceSection(), "paths": SYSTEM if system else OWN, **more}
    return ServicePlan(system=system, device=device, **settings)  # type: ignore[arg-type]


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def values(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in lines(text) if line.startswith(f"{key}=")]


def analyze(unit: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / UNIT).write_text(unit)
    return subprocess.run(
        ["systemd-analyze", *words, str(tmp_path / UNIT)],
        env={"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_PAGER": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_systemd
@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("system", [False, True])
def test_the_unit_leaves_hardly_anything_open(system: bool, device: str, tmp_path: Path) -> None:
    """`security` finds at most 2.0, where a unit without walls has 9.2; `verify` finds nothing wrong."""
    unit = systemd_unit(plan(system=system, device=device))
    done = analyze(unit, tmp_path, "security", "--offline=true", "--threshold=20")
    assert done.returncode == 0, done.stdout + done.stderr
    done = analyze(unit, tmp_path, *([] if system else ["--user"]), "verify")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manager_hears_of_readiness_and_watches() -> None:
    service = ServiceSection(watchdog=12.5, stop_timeout=7.0, restart_delay=3.0)
    unit = systemd_unit(plan(service=service))
    for key, value in {
        "Type": "notify", "NotifyAccess": "main", "WatchdogSec": "12.5", "TimeoutStopSec": "17",
        "Restart": "on-failure", "RestartSec": "3", "LimitCORE": "0",
    }.items():  # fmt: skip
        assert values(unit, key) == [value], key
    assert values(systemd_unit(plan(service=ServiceSection(watchdog=0.0))), "WatchdogSec") == []


def test_the_network_and_its_own_folders_stay_open() -> None:
    unit = systemd_unit(plan())
    assert values(unit, "RestrictAddressFamilies") == ["AF_INET AF_INET6 AF_UNIX"]
    assert values(unit, "ReadWritePaths") == ["/h/state", "/h/models", "/h/cache"]
    assert values(unit, "ProtectHome") == ["read-only"]
    system = systemd_unit(plan(system=True))
    assert values(system, "StateDirectory") == values(system, "CacheDirectory") == ["forerun"]
    assert values(system, "ProtectHome") == ["yes"]
    assert values(system, "DynamicUser") == ["yes"]
    named = systemd_unit(plan(system=True, user="drafter", in_home=(Path("/home/x"),)))
    assert (values(named, "User"), values(named, "DynamicUser")) == (["drafter"], [])
    assert values(named, "ProtectHome") == ["read-only"]


def test_folders_of_the_configuration_are_writable_and_need_not_be_there() -> None:
    more = (Path("/var/log/my logs"),)
    assert '"-/var/log/my logs"' in values(systemd_unit(plan(writable=more)), "ReadWritePaths")
    assert values(systemd_unit(plan(system=True, writable=more)), "ReadWritePaths") == ['"-/var/log/my logs"']
    assert values(systemd_unit(plan(namespaces=False, writable=more)), "ReadWritePaths") == []


def test_the_files_of_the_machines_daemon_are_where_its_clients_look() -> None:
    """systemd puts State, Cache and RuntimeDirectory=forerun below these."""
    assert (SYSTEM.state, SYSTEM.cache, SYSTEM.runtime) == (
        Path("/var/lib/forerun"), Path("/var/cache/forerun"), Path("/run/forerun"),
    )  # fmt: skip
    assert SYSTEM.models.is_relative_to(SYSTEM.cache)


def test_devices_are_open_only_where_asked_for() -> None:
    assert values(systemd_unit(plan()), "PrivateDevices") == ["yes"]
    assert values(systemd_unit(plan()), "MemoryDenyWriteExecute") == ["yes"]
    for device in ("gpu", "jetson"):
        unit = systemd_unit(plan(device=device))
        assert values(unit, "PrivateDevices") == values(unit, "MemoryDenyWriteExecute") == []
        assert values(unit, "DevicePolicy") == ["closed"]
        assert "char-nvidia* rw" in values(unit, "DeviceAllow")
    assert "/dev/nvmap rw" in values(systemd_unit(plan(device="jetson")), "DeviceAllow")


@pytest.mark.parametrize("device", list(DEVICES))
def test_a_users_manager_can_take_capabilities_away(device: str) -> None:
    """Which needs a user namespace: else the service ends with 218/CAPABILITIES before it begins."""
    for unit in (systemd_unit(plan(device=device, namespaces=each)) for each in (True, False)):
        assert values(unit, "CapabilityBoundingSet") == ([""] if values(unit, "PrivateUsers") else [])


def test_without_namespaces_only_what_needs_them_is_left_out() -> None:
    full, less = (lines(systemd_unit(plan(namespaces=each))) for each in (True, False))
    assert set(less) < set(full)
    assert "NoNewPrivileges=yes" in less
    assert "SystemCallFilter=@system-service" in less
    assert not [
        line for line in less if line.startswith(("Protect", "Private", "ReadWritePaths", "Capability"))
    ]


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("/a/plain-word", "/a/plain-word"),
        ("/with space", '"/with space"'),
        ("100%$HOME", "100%%$$HOME"),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("", '""'),
    ],
)
def test_words_are_written_so_that_systemd_reads_them_back(word: str, written: str) -> None:
    unit = systemd_unit(plan(command=("/bin/forerun", word)))
    assert values(unit, "ExecStart") == [f"/bin/forerun {written}"]


@pytest.mark.parametrize(
    "more",
    [
        {"command": ("forerun",)},
        {"user": "x"},
        {"system": True, "in_home": (Path("/home/x/d.gguf"),)},
    ],
)
def test_what_cannot_be_a_service_is_refused(more: dict[str, object]) -> None:
    with wording.raises(UserError):
        plan(**more)  # type: ignore[arg-type]


def test_the_agent_of_macos() -> None:
    found = plistlib.loads(launchd_plist(plan()))
    assert found["Label"] == "forerun.edge"
    assert found["ProgramArguments"] == list(COMMAND)
    assert found["RunAtLoad"] is True
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["ProcessType"] == "Interactive"
    assert found["StandardErrorPath"] == found["StandardOutPath"] == "/h/state/edge.log"
    assert (found["ExitTimeOut"], found["Umask"]) == (30, 0o077)


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
from edge_client.llama.group import DraftGroup, MemberDrafter
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


def test_no_setting_stands_twice() -> None:
    """But for those that add to a list."""
    for each in (plan(), plan(system=True), plan(system=True, device="gpu")):
        keys = re.findall(r"^(\w+)=", systemd_unit(each), re.MULTILINE)
        adding = {"ReadWritePaths", "DeviceAllow", "SystemCallFilter", "Environment"}
        once = [key for key in keys if key not in adding]
        assert len(once) == len(set(once))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's places, and a systemctl that notes how it was called."""
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    program.chmod(0o755)
    return tmp_path


def unit_of(home: Path) -> Path:
    return home / "config" / "systemd" / "user" / UNIT


def called(home: Path) -> list[str]:
    file = home / "called"
    return file.read_text().splitlines() if file.exists() else []


def test_print_writes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "install-service", "--print", "--gpu"]) == 0
    assert "DeviceAllow=char-nvidia* rw" in capsys.readouterr().out
    assert sorted(path.name for path in home.iterdir()) == ["bin"]


def test_a_users_unit_is_written_with_its_folders(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "install-service"]) == 0
    text = unit_of(home).read_text()
    assert MARK in text
    assert f"ReadWritePaths={home}/state/forerun" in text
    assert stat.S_IMODE(unit_of(home).stat().st_mode) == 0o644
    assert stat.S_IMODE((home / "state" / "forerun").stat().st_mode) == 0o700
    assert (home / "data" / "forerun" / "models").is_dir()
    out = capsys.readouterr().out
    assert f"wrote {unit_of(home)}" in out
    assert f"systemctl --user enable --now {UNIT}" in out
    assert called(home) == []
    assert main(["edge", "install-service", "--json"]) == 0  # again: it is its own
    assert json.loads(capsys.readouterr().out) == {"written": str(unit_of(home)), "started": False}


def test_now_starts_it_and_uninstall_ends_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edge", "install-service", "--now"]) == 0
    assert called(home) == ["--user daemon-reload", f"--user enable --now {UNIT}"]
    assert main(["edge", "uninstall-service", "--json"]) == 0
    assert called(home)[2:] == [f"--user disable --now {UNIT}", "--user daemon-reload"]
    assert not unit_of(home).exists()
    assert (home / "state" / "forerun").is_dir()
    capsys.readouterr()
    assert main(["edge", "uninstall-service"]) == 1
    assert "there is no" in capsys.readouterr().out


def test_a_manager_that_refuses_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "bin" / "systemctl").write_text("#!/bin/sh\necho 'no bus' >&2; exit 1\n")
    assert main(["edge", "install-service", "--now"]) == 2
    wording.keep(capsys.readouterr().err)
    (home / "bin" / "systemctl").unlink()
    assert main(["edge", "install-service", "--now"]) == 2
    wording.keep(capsys.readouterr().err)


def test_anothers_file_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit_of(home).parent.mkdir(parents=True)
    unit_of(home).write_text("[Service]\n")
    for words in (["install-service"], ["uninstall-service"]):
        assert main(["edge", *words]) == 2
        wording.keep(capsys.readouterr().err)
        assert unit_of(home).read_text() == "[Service]\n"
    assert main(["edge", "install-service", "--force"]) == 0
    assert MARK in unit_of(home).read_text()


def test_the_configuration_is_read_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "my edge.toml"
    file.write_text("[service]\nwatchdog = 99\n")
    assert main(["edge", "install-service", "--print", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert "WatchdogSec=99\n" in out
    assert f'-m forerun edge --config "{file}"\n' in out
    file.write_text("[service]\nwatchdog = -1\n")
    assert main(["edge", "install-service", "--config", str(file)]) == 2
    wording.keep(capsys.readouterr().err)
    assert not unit_of(home).exists()


def test_a_socket_that_nobody_would_see_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "edge.toml"
    file.write_text('[api]\nlisten = "unix:/tmp/edge.sock"\n')
    assert main(["edge", "install-service", "--print", "--config", str(file)]) == 2
    wording.keep(capsys.readouterr().err)


def test_a_model_in_a_home_needs_a_named_user(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_command, "HOMES", (home,))
    file = home / "edge.toml"
    file.write_text('[draft]\nmodel = "d.gguf"\n')
    words = ["edge", "install-service", "--print", "--system", "--config", str(file)]
    assert main(words) == 2
    wording.keep(capsys.readouterr().err)
    assert main([*words, "--run-as", "me"]) == 0
    assert "ProtectHome=read-only" in capsys.readouterr().out
    file.write_text('[draft]\nmodel = "hf://o/r/d.gguf"\n')
    assert main(words) == 0
    assert "ProtectHome=yes" in capsys.readouterr().out
    file.write_text('[draft]\nmodel = "hf://o/r/d.gguf"\n[pairs.a.draft]\nmodel = "d.gguf"\n')
    assert main(words) == 2


def test_the_machines_unit(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_command, "SYSTEM_UNITS", home / "system")
    assert main(["edge", "install-service", "--system", "--run-as", "drafter", "--now"]) == 0
    text = (home / "system" / UNIT).read_text()
    assert "User=drafter\n" in text
    assert "WantedBy=multi-user.target" in text
    assert called(home) == ["daemon-reload", f"enable --now {UNIT}"]
    assert not (home / "state").exists()
    assert main(["edge", "uninstall-service", "--system"]) == 0


def test_without_namespaces_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unshare = home / "bin" / "unshare"
    unshare.write_text("#!/bin/sh\nexit 1\n")
    unshare.chmod(0o755)
    assert main(["edge", "install-service"]) == 0
    assert "gives users no namespaces" in capsys.readouterr().out
    assert "ProtectSystem" not in unit_of(home).read_text()
    unshare.write_text("#!/bin/sh\nexit 0\n")
    assert main(["edge", "install-service"]) == 0
    assert "ProtectSystem=strict" in unit_of(home).read_text()
    assert main(["edge", "install-service", "--no-namespaces"]) == 0
    assert "ProtectSystem" not in unit_of(home).read_text()


def test_on_macos_it_is_an_agent(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("HOME", str(home))
    assert main(["edge", "install-service"]) == 0
    file = home / "Library" / "LaunchAgents" / "forerun.edge.plist"
    assert MARK.encode() in file.read_bytes()
    assert "launchctl bootstrap gui/" in capsys.readouterr().out
    assert main(["edge", "install-service", "--system"]) == 2
    assert main(["edge", "uninstall-service"]) == 0
    assert not file.exists()
