"""The service's files: hardened, valid, and open only where the daemon needs it."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import demo_models
from common.errors import UserError
from edge_client.config import ServiceSection
from edge_client.paths import SYSTEM, EdgePaths
from forerun.service_units import DEVICES, UNIT, ServicePlan, launchd_plist, systemd_unit

OWN = EdgePaths(*(Path("/h") / name for name in ("config", "state", "cache", "models", "run")))
COMMAND = (sys.executable, "-P", "-m", "forerun", "edge")
THRESHOLDS = {"": 20, "gpu": 20, "jetson": 20}
"""Ten times the exposure that `systemd-analyze security` may find; a unit without walls has 92."""

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
    threshold = f"--threshold={THRESHOLDS[device]}"
    done = analyze(
        systemd_unit(plan(system=system, device=device)), tmp_path, "security", "--offline=true", threshold
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_systemd
def test_the_threshold_can_be_missed(tmp_path: Path) -> None:
    """A unit without walls, by the same measure."""
    bare = f"[Service]\nExecStart={sys.executable}\n"
    assert analyze(bare, tmp_path, "security", "--offline=true", "--threshold=20").returncode != 0


@needs_systemd
@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("system", [False, True])
def test_systemd_finds_nothing_wrong_with_it(system: bool, device: str, tmp_path: Path) -> None:
    scope = [] if system else ["--user"]
    done = analyze(systemd_unit(plan(system=system, device=device)), tmp_path, *scope, "verify")
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
    ("more", "words"),
    [
        ({"command": ("forerun",)}, "absolute path"),
        ({"user": "x"}, "--run-as belongs to --system"),
        ({"system": True, "in_home": (Path("/home/x/d.gguf"),)}, "/home/x/d.gguf is in somebody's home"),
    ],
)
def test_what_cannot_be_a_service_is_refused(more: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
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
from edge_client.llama.drafter import LlamaDrafter
from edge_client.llama.library import native_log
from edge_client.llama.runtime import LlamaRuntime
from edge_client.llama.settings import LlamaSettings
from common.errors import UserError

with LlamaRuntime(LlamaSettings(sys.argv[1])) as model:
    assert model.tokenize("def f", True)
    LlamaDrafter(model)
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
