"""Implements `forerun edge install-service` and `uninstall-service` for systemd and launchd.

The systemd unit allows only what drafting on the processor and talking to verifiers need: IPv4, IPv6 and unix
sockets, its own folders, and memory. `systemd-analyze security` rates it.
"""

from __future__ import annotations

import argparse
import json
import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forerun
from common.errors import UserError
from common.llama.store import is_remote
from edge_client.process.paths import EdgePaths, make_private
from edge_client.settings import SCHEMA, UNIX, EdgeConfig, ServiceSection, load_config
from forerun.options import ConfigOption, DaemonOptions, JsonOption, add_command, files_read, option

INSTALL = """\
Write the daemon's service: on Linux a systemd unit with as few rights as possible, on macOS a launchd agent.
The service is this user's, or with --system the machine's. It is started only with --now.

  forerun edge install-service --print
  forerun edge install-service --now
  sudo forerun edge install-service --system"""

SYSTEM_UNITS = Path("/etc/systemd/system")
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""Folders that ProtectHome hides."""

OWN_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/dev"))  # noqa: S108 - named, not written
"""Folders that PrivateTmp and PrivateDevices replace by the service's own."""

PROBE = """\
import ctypes
libc = ctypes.CDLL(None)
if libc.prctl(65, 1, 0, 0, 0) == 0:  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: Linux 6.3 and later
    assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)() == 7
"""
"""Program that fails if this Python's libffi needs memory that is both written and run for callbacks, as for
llama.cpp's log. libffi 3.4 and later does not need it. On an old kernel, which cannot tell, it passes."""


DEVICE: dict[str, Any] = {"action": "store_const", "either": "device"}


@dataclass(frozen=True, kw_only=True)
class InstallOptions(ConfigOption, JsonOption):
    """Declares what is installed."""

    only_print: bool = option(False, "print the service's file and write nothing", flag="--print")
    now: bool = option(False, "enable and start the service")
    force: bool = option(False, "overwrite a file that this command did not write")
    run_as: str = option("", "existing user to run as, with --system (default: a temporary user)", "USER")
    gpu: str = option("", "allow access to the devices of a GPU", const="gpu", **DEVICE)
    jetson: str = option("", "allow access to the devices of a Jetson", const="jetson", **DEVICE)
    namespaces: bool | None = option(
        None,
        "use protections that need user namespaces, in a user's service (default: if the kernel allows)",
        action=argparse.BooleanOptionalAction,
    )


def add_actions(actions: Any) -> None:
    """Add `install-service` and `uninstall-service`."""
    words = "write a systemd unit or a launchd agent"
    add_command(actions, "install-service", words, _install, InstallOptions, INSTALL)
    words = "stop the service and remove what install-service wrote"
    description = "Stop and disable the service and remove its file. State, models and settings stay."
    add_command(actions, "uninstall-service", words, _uninstall, DaemonOptions, description)


# install ----------------------------------------------------------------------------------------------------


def _install(options: InstallOptions) -> int:
    paths = options.paths
    plan = _plan(options, paths)
    text = launchd_plist(plan) if _is_mac() else systemd_unit(plan).encode()
    if options.only_print:
        sys.stdout.write(text.decode())
        return 0
    manager = _manager(options.system)
    file = manager.file
    _check_ours(file, options.force)
    _write(file, text)
    if not options.system:
        for folder in (paths.state, paths.models, paths.cache):
            make_private(folder)
    if options.now:
        for step in manager.start:
            _run(step)
    _tell(options, {"written": str(file), "started": options.now}, _said(plan, manager, options.now))
    return 0


def _plan(options: InstallOptions, paths: EdgePaths) -> ServicePlan:
    """Return the service's plan. Raise `UserError` if it cannot run or its configuration is wrong."""
    config = load_config({}, os.environ, files_read(options.config, paths)).config
    _check_socket(config)
    chosen = ["--config", str(options.config.absolute())] if options.config else []
    return ServicePlan(
        command=(sys.executable, "-P", "-m", "forerun", "edge", *chosen),
        paths=paths,
        service=config.service,
        system=options.system,
        user=options.run_as,
        device=options.gpu or options.jetson,
        in_home=_in_home(config),
        writable=_written(config),
        namespaces=_has_namespaces() if options.namespaces is None else options.namespaces,
        denies_write_execute=_calls_back_without_writing_code(),
    )


def _in_home(config: EdgeConfig) -> tuple[Path, ...]:
    """Return the files of the program and its configuration that are in a home folder."""
    program = (Path(sys.executable).resolve(), Path(sys.prefix), Path(forerun.__file__).resolve())
    paths = [entry for entry in SCHEMA.entries if entry.setting.is_path]
    configs = (config, *config.pairs.values())
    told = [getattr(getattr(each, entry.section), entry.field) for each in configs for entry in paths]
    files = [*program, *(Path(each) for each in told if each and not is_remote(each))]
    return tuple(file for file in files if any(home in file.parents for home in HOMES))


def _written(config: EdgeConfig) -> tuple[Path, ...]:
    """Return the configured folders that the daemon writes to."""
    socket = config.api.listen.removeprefix(UNIX) if config.api.listen.startswith(UNIX) else ""
    return tuple(Path(each).parent for each in (config.log.file, config.api.token_file, socket) if each)


def _check_socket(config: EdgeConfig) -> None:
    """Raise `UserError` for a socket in a folder that is private to the service."""
    path = Path(config.api.listen.removeprefix(UNIX)) if config.api.listen.startswith(UNIX) else Path()
    if any(folder in path.parents for folder in OWN_FOLDERS):
        raise UserError(
            f"api.listen is {config.api.listen}, but the service has a private {path.parts[1]} folder that "
            "no other program sees; use a socket in the runtime folder (`forerun edge config path`)"
        )


def _has_namespaces() -> bool:
    """Try whether users may have namespaces, which some kernels and security modules forbid."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return True
    command = [unshare, "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _calls_back_without_writing_code() -> bool:
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode == 0


def _check_ours(file: Path, force: bool) -> None:
    """Raise `UserError` if the file was not written by this command."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    if MARK not in text and not force:
        raise UserError(f"{file} was not written by this command; check it, then use --force or remove it")


def _write(file: Path, text: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        new.write_bytes(text)
        new.chmod(0o644)
        os.replace(new, file)
    except OSError as error:
        raise UserError(
            f"{file} cannot be written: {error.strerror or error}; --system needs root"
        ) from error


# uninstall --------------------------------------------------------------------------------------------------


def _uninstall(options: DaemonOptions) -> int:
    manager = _manager(options.system)
    file = manager.file
    if not file.is_file():
        _tell(options, {"removed": False}, f"there is no {file}")
        return 1
    _check_ours(file, force=False)
    for step in manager.stop:
        _run(step, check=False)
    try:
        file.unlink()
    except OSError as error:
        raise UserError(f"{file} cannot be removed: {error.strerror or error}") from error
    for step in manager.forget:
        _run(step, check=False)
    _tell(options, {"removed": True, "file": str(file)}, f"removed {file}")
    return 0


# both -------------------------------------------------------------------------------------------------------


def _is_mac() -> bool:
    return sys.platform == "darwin"


@dataclass(frozen=True, slots=True)
class Manager:
    """Holds the service's file and the commands of its service manager."""

    file: Path
    start: list[list[str]]
    stop: list[list[str]]
    forget: list[list[str]]  # after the file is gone


def _manager(system: bool) -> Manager:
    """Return the service manager. Raise `UserError` for a kind of service that this system lacks."""
    if _is_mac():
        if system:
            raise UserError("--system is for systemd; on macOS the agent belongs to a user: omit --system")
        file, domain = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist", f"gui/{os.getuid()}"
        start, stop = (["launchctl", verb, domain, str(file)] for verb in ("bootstrap", "bootout"))
        return Manager(file, [start], [stop], [])
    systemctl = ["systemctl"] if system else ["systemctl", "--user"]
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    folder = SYSTEM_UNITS if system else config / "systemd" / "user"
    start, stop = ([*systemctl, verb, "--now", UNIT] for verb in ("enable", "disable"))
    reload = [*systemctl, "daemon-reload"]
    return Manager(folder / UNIT, [reload, start], [stop], [reload])


def _run(command: list[str], *, check: bool = True) -> None:
    """Run a command. Raise `UserError` if it fails and `check` is set."""
    if shutil.which(command[0]) is None:
        if check:
            raise UserError(f"{command[0]} is not installed; start the daemon with: forerun edge")
        return
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise UserError(f"{shlex.join(command)} failed: {done.stderr.strip() or done.returncode}")


def _said(plan: ServicePlan, manager: Manager, started: bool) -> str:
    lines = [f"wrote {manager.file}"]
    if not plan.system and not plan.namespaces:
        lines.append("this kernel gives users no namespaces: protections that need them are omitted")
    if not plan.device and not plan.denies_write_execute:
        lines.append("this Python's libffi writes code at run time: MemoryDenyWriteExecute is omitted")
    if not started:
        lines += ["start it with:", *(f"  {shlex.join(step)}" for step in manager.start)]
    if not plan.system and not _is_mac():
        lines.append("to keep it running while you are logged out: loginctl enable-linger")
    return "\n".join(lines)


def _tell(options: JsonOption, told: dict[str, Any], words: str) -> None:
    print(json.dumps(told) if options.json else words)


# the files -------------------------------------------------------------------------------------------------

UNIT = "forerun-edge.service"
LABEL = "forerun.edge"
MARK = "Written by `forerun edge install-service`"
"""Text by which `uninstall-service` recognizes its own file."""

KILL_AFTER = 10.0
"""Seconds after the daemon's own stop limit until it is killed."""

TEMPLATE = """\
# {mark}; put changes into a drop-in: systemctl edit.
[Unit]
Description=Forerun edge daemon
system? Wants=network-online.target
system? After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
Environment=PYTHONDONTWRITEBYTECODE=1
TimeoutStartSec=120
TimeoutStopSec={stop:g}
watchdog? WatchdogSec={service.watchdog:g}
Restart=on-failure
RestartSec={service.restart_delay:g}
KillMode=mixed
UMask=0077
# A memory dump would hold prompts.
LimitCORE=0
system named? User={user}
system unnamed? DynamicUser=yes
system? StateDirectory=forerun
system? CacheDirectory=forerun
RuntimeDirectory=forerun
system? StateDirectoryMode=0700
system? CacheDirectoryMode=0700
RuntimeDirectoryMode=0700
system? ConfigurationDirectory=forerun
system? ConfigurationDirectoryMode=0755
system? RemoveIPC=yes
walls? ReadWritePaths={writable}
NoNewPrivileges=yes
device? # No MemoryDenyWriteExecute: drivers of accelerators compile kernels as they are needed.
processor denies? MemoryDenyWriteExecute=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
walls apart? PrivateUsers=yes
walls? CapabilityBoundingSet=
walls? AmbientCapabilities=
walls? ProtectSystem=strict
walls? ProtectHome={home}
walls? PrivateTmp=yes
walls? PrivateMounts=yes
walls processor? PrivateDevices=yes
walls? DevicePolicy=closed
walls? DeviceAllow={device}
walls system device? SupplementaryGroups=video render
walls device? Environment={cuda}
walls? ProtectProc=invisible
walls? ProtectClock=yes
walls? ProtectHostname=yes
walls? ProtectKernelLogs=yes
walls? ProtectKernelModules=yes
walls? ProtectKernelTunables=yes
walls? ProtectControlGroups=yes

[Install]
WantedBy={target}.target
"""
"""The unit gets a line if all words before its question mark hold, and a line with a list once per entry.
/proc stays whole (no ProcSubset=pid), because the daemon's file names the current boot."""

DEVICES = {
    "": (),
    "gpu": ("char-drm rw", "char-nvidia* rw", "/dev/kfd rw"),
    "jetson": (
        "char-drm rw",
        "char-nvidia* rw",
        "char-nvhost* rw",
        "char-nvgpu* rw",
        "char-nvmap* rw",
        "/dev/nvmap rw",
    ),
}
"""Device files that an accelerator's driver opens, by kind; "": the processor only."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """Holds the values that a unit is made from."""

    command: tuple[str, ...]  # the daemon's, its program absolute
    paths: EdgePaths
    service: ServiceSection
    system: bool = False  # of the whole machine, not of one user
    user: str = ""  # user of a machine's service; empty: a user that exists only while it runs
    device: str = ""  # a key of DEVICES
    in_home: tuple[Path, ...] = ()  # files of its program and its configuration in a home folder
    writable: tuple[Path, ...] = ()  # other folders that it writes to
    namespaces: bool = True  # whether users have namespaces, which most protections need
    denies_write_execute: bool = True  # whether written memory can never run

    def __post_init__(self) -> None:
        if not self.command or not Path(self.command[0]).is_absolute():
            raise UserError("the service's program must be an absolute path")
        if self.user and not self.system:
            raise UserError("a user's own service runs as that user; --run-as needs --system")
        if self.in_home and self.system and not self.user:
            raise UserError(
                f"{self.in_home[0]} is in somebody's home, which the service's own user cannot read; "
                "move it, for example below /opt, or name a user with --run-as"
            )


def systemd_unit(plan: ServicePlan) -> str:
    """Return the unit's text."""
    holds = {
        "system": plan.system,
        "named": bool(plan.user),
        "unnamed": not plan.user,
        "watchdog": plan.service.watchdog > 0,
        "device": bool(plan.device),
        "processor": not plan.device,
        "denies": plan.denies_write_execute,
        # A user's manager builds walls inside a user namespace, which not every kernel gives.
        "walls": plan.system or plan.namespaces,
        # A user namespace of its own. Only inside one can a user's manager take capabilities away: without
        # it, systemd 252 ends the service with 218/CAPABILITIES. The machine's manager needs none, and the
        # groups that may open an accelerator would not exist there.
        "apart": not (plan.system and plan.device),
    }
    values = {
        "mark": MARK,
        "command": " ".join(map(_word, plan.command)),
        "service": plan.service,
        "stop": plan.service.stop_timeout + KILL_AFTER,
        "user": plan.user,
        "home": "read-only" if plan.in_home or not plan.system else "yes",
        "cuda": _word(f"CUDA_CACHE_PATH={plan.paths.cache / 'cuda'}"),
        "target": "multi-user" if plan.system else "default",
    }
    lists = {"{writable}": _writable(plan), "{device}": DEVICES[plan.device]}
    lines = list[str]()
    for line in TEMPLATE.splitlines(keepends=True):
        conditions, _, text = line.rpartition("? ")
        if all(holds[each] for each in conditions.split()):
            entries = next((entries for name, entries in lists.items() if name in text), ("",))
            lines += [text.format(**values, writable=each, device=each) for each in entries]
    return "".join(lines)


def launchd_plist(plan: ServicePlan) -> bytes:
    """Return the property list of a user's agent."""
    log = str(plan.paths.log)
    found = {
        "Label": LABEL,
        "ProgramArguments": list(plan.command),
        "RunAtLoad": True,
        "KeepAlive": {
            "SuccessfulExit": False
        },  # started again after a failure, not after `forerun edge stop`
        "ThrottleInterval": max(1, round(plan.service.restart_delay)),
        "ExitTimeOut": round(plan.service.stop_timeout + KILL_AFTER),
        "ProcessType": "Interactive",  # a user waits for each token; other types are slowed to save power
        "WorkingDirectory": str(plan.paths.state),
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "Umask": 0o077,
        "SoftResourceLimits": {"Core": 0},
        "EnvironmentVariables": {"PYTHONDONTWRITEBYTECODE": "1"},
    }
    head, _, rest = plistlib.dumps(found, sort_keys=False).partition(b"<plist")
    return head + f"<!-- {MARK} -->\n<plist".encode() + rest


def _writable(plan: ServicePlan) -> list[str]:
    """Return the writable folders. A missing one is ignored, as the daemon itself reports it best."""
    own = () if plan.system else (plan.paths.state, plan.paths.models, plan.paths.cache)
    more = [f"-{folder}" for folder in plan.writable]
    return [_word(each) for each in dict.fromkeys([*map(str, own), *more])]


def _word(text: str) -> str:
    """Quote and escape a word for a unit (systemd.syntax(7))."""
    text = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{text}"' if not text or set(text) & set(" \t'\"\\;") else text
