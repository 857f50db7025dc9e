"""`forerun edge install-service` and `uninstall-service`: the daemon under systemd or launchd."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import forerun
from common.errors import UserError
from edge_client.config import EdgeConfig
from edge_client.config.checks import UNIX, is_unix
from edge_client.config.schema import ENTRIES
from edge_client.model_name import is_remote
from edge_client.paths import EdgePaths, make_private
from forerun.edge_places import add_config, add_json, add_place, loaded, places
from forerun.service_units import LABEL, MARK, UNIT, ServicePlan, launchd_plist, systemd_unit

INSTALL = """\
Writes the daemon's service: on Linux a systemd unit with all that it does not need taken from it, on macOS a
launchd agent. It is this user's, or with --system the machine's. Nothing is started unless --now is given.

  forerun edge install-service --print
  forerun edge install-service --now
  sudo forerun edge install-service --system"""

SYSTEM_UNITS = Path("/etc/systemd/system")
HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""What ProtectHome hides."""

OWN_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/dev"))
"""Of which PrivateTmp and PrivateDevices give the service its own."""

PROBE = """\
import ctypes
libc = ctypes.CDLL(None)
if libc.prctl(65, 1, 0, 0, 0) == 0:  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN: Linux 6.3 and later
    assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)() == 7
"""
"""Whether this Python's libffi makes callbacks, which llama.cpp gets for its log, without memory that is both
written and run. Those of its versions 3.4 and later do; where the kernel cannot tell, it is believed."""


def add_actions(actions: Any) -> None:
    """Both."""
    install = actions.add_parser(
        "install-service",
        help="write a systemd unit or a launchd agent",
        description=INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = install.add_argument
    option("--print", dest="only_print", action="store_true", help="print it and write nothing")
    option("--now", action="store_true", help="enable and start it")
    option("--force", action="store_true", help="write over a file that is not of this command")
    option("--run-as", default="", metavar="USER", help="with --system: an existing user, not a fleeting one")
    device = install.add_mutually_exclusive_group()
    for name in ("gpu", "jetson"):
        words = f"let it use the {name}'s devices"
        device.add_argument(
            f"--{name}", dest="device", action="store_const", const=name, default="", help=words
        )
    option(
        "--namespaces",
        action=argparse.BooleanOptionalAction,
        help="of a user's systemd: walls that need user namespaces (as the kernel allows)",
    )
    add_config(install)
    add_place(install)
    add_json(install)
    install.set_defaults(run=_install)
    uninstall = actions.add_parser(
        "uninstall-service",
        help="stop the service and remove what install-service wrote",
        description="Stops and disables the service and removes its file; state, models, settings stay.",
    )
    add_place(uninstall)
    add_json(uninstall)
    uninstall.set_defaults(run=_uninstall)


# install ----------------------------------------------------------------------------------------------------


def _install(options: argparse.Namespace) -> int:
    paths = places(options)
    plan = _plan(options, paths)
    text = launchd_plist(plan) if _is_mac() else systemd_unit(plan).encode()
    if options.only_print:
        sys.stdout.write(text.decode())
        return 0
    file = _file(options)
    _check_ours(file, options.force)
    _write(file, text)
    if not options.system:
        for folder in (paths.state, paths.models, paths.cache):
            make_private(folder)
    steps = _starting(options, file)
    if options.now:
        for step in steps:
            _run(step)
    _tell(options, {"written": str(file), "started": options.now}, _said(file, plan, steps, options.now))
    return 0


def _plan(options: argparse.Namespace, paths: EdgePaths) -> ServicePlan:
    """Raises `UserError` if this program cannot be a service, or its configuration is wrong."""
    config = loaded(options, paths).config
    _check_socket(config)
    chosen = ["--config", str(options.config.absolute())] if options.config else []
    return ServicePlan(
        command=(sys.executable, "-P", "-m", "forerun", "edge", *chosen),
        paths=paths,
        service=config.service,
        system=options.system,
        user=options.run_as,
        device=options.device or "",
        in_home=_in_home(config),
        writable=_written(config),
        namespaces=_has_namespaces() if options.namespaces is None else options.namespaces,
        denies_write_execute=_calls_back_without_writing_code(),
    )


def _in_home(config: EdgeConfig) -> tuple[Path, ...]:
    """Files of the program and of its configuration that are below somebody's home."""
    program = (Path(sys.executable).resolve(), Path(sys.prefix), Path(forerun.__file__).resolve())
    paths = [entry for entry in ENTRIES if entry.setting.is_path]
    told = [getattr(getattr(config, entry.section), entry.key) for entry in paths]
    files = [*program, *(Path(each) for each in told if each and not is_remote(each))]
    return tuple(file for file in files if any(home in file.parents for home in HOMES))


def _written(config: EdgeConfig) -> tuple[Path, ...]:
    """Folders that the configuration has the daemon write to."""
    socket = config.api.listen.removeprefix(UNIX) if is_unix(config.api.listen) else ""
    return tuple(Path(each).parent for each in (config.log.file, config.api.token_file, socket) if each)


def _check_socket(config: EdgeConfig) -> None:
    """Raise `UserError` for one that nobody else would see."""
    path = Path(config.api.listen.removeprefix(UNIX)) if is_unix(config.api.listen) else Path()
    if any(folder in path.parents for folder in OWN_FOLDERS):
        raise UserError(
            f"api.listen is {config.api.listen}, and the service has a {path.parts[1]} folder of its own "
            "that nobody else sees; use a socket in the runtime folder (`forerun edge config path`)"
        )


def _has_namespaces() -> bool:
    """Whether a user may have namespaces here: tried, as some kernels and security modules forbid it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return True
    command = [unshare, "--user", "--map-root-user", "--mount", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _calls_back_without_writing_code() -> bool:
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode == 0


def _check_ours(file: Path, force: bool) -> None:
    """Raise `UserError` if somebody else wrote it."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    if MARK not in text and not force:
        raise UserError(f"{file} was not written by this command; look at it, then use --force or remove it")


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


def _uninstall(options: argparse.Namespace) -> int:
    file = _file(options)
    if not file.is_file():
        _tell(options, {"removed": False}, f"there is no {file}")
        return 1
    _check_ours(file, force=False)
    for step in _ending(options, file):
        _run(step, check=False)
    try:
        file.unlink()
    except OSError as error:
        raise UserError(f"{file} cannot be removed: {error.strerror or error}") from error
    _run(_reload(options), check=False)
    _tell(options, {"removed": True, "file": str(file)}, f"removed {file}")
    return 0


# both -------------------------------------------------------------------------------------------------------


def _is_mac() -> bool:
    return sys.platform == "darwin"


def _file(options: argparse.Namespace) -> Path:
    """Where the service's file belongs. Raises `UserError` on a system without services that we know."""
    if _is_mac():
        if options.system:
            raise UserError("--system is for systemd; on macOS the agent is a user's: leave it out")
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    if options.system:
        return SYSTEM_UNITS / UNIT
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "systemd" / "user" / UNIT


def _systemctl(options: argparse.Namespace) -> list[str]:
    return ["systemctl"] if options.system else ["systemctl", "--user"]


def _starting(options: argparse.Namespace, file: Path) -> list[list[str]]:
    if _is_mac():
        return [["launchctl", "bootstrap", f"gui/{os.getuid()}", str(file)]]
    return [_reload(options), [*_systemctl(options), "enable", "--now", UNIT]]


def _ending(options: argparse.Namespace, file: Path) -> list[list[str]]:
    if _is_mac():
        return [["launchctl", "bootout", f"gui/{os.getuid()}", str(file)]]
    return [[*_systemctl(options), "disable", "--now", UNIT]]


def _reload(options: argparse.Namespace) -> list[str]:
    return [] if _is_mac() else [*_systemctl(options), "daemon-reload"]


def _run(command: list[str], *, check: bool = True) -> None:
    """Raises `UserError` if it fails and `check` is wanted."""
    if not command:
        return
    if shutil.which(command[0]) is None:
        if check:
            raise UserError(f"there is no {command[0]} here; start the daemon with: forerun edge")
        return
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise UserError(f"{shlex.join(command)} failed: {done.stderr.strip() or done.returncode}")


def _said(file: Path, plan: ServicePlan, steps: list[list[str]], started: bool) -> str:
    lines = [f"wrote {file}"]
    if not plan.system and not plan.namespaces:
        lines.append("this kernel gives users no namespaces: walls that need them are left out")
    if not plan.device and not plan.denies_write_execute:
        lines.append("this Python's libffi writes code as it runs: MemoryDenyWriteExecute is left out")
    if not started:
        lines += ["start it with:", *(f"  {shlex.join(step)}" for step in steps)]
    if not plan.system and not _is_mac():
        lines.append("to keep it running while you are logged out: loginctl enable-linger")
    return "\n".join(lines)


def _tell(options: argparse.Namespace, told: dict[str, Any], words: str) -> None:
    print(json.dumps(told) if options.json else words)
