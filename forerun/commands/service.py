"""Implements `forerun edge install-service` and `uninstall-service` by the templates in `forerun/units`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forerun
from common.config.command_line import add_command
from common.config.setting import setting
from common.errors import UserError
from common.llama.files import hub_home, is_remote
from edge_client.process.paths import make_private
from edge_client.settings import SCHEMA, UNIX, EdgeConfig, load_config
from forerun.options import ConfigOption, DaemonOptions, JsonOption, write_out

INSTALL = """\
Write the daemon's service: on Linux a systemd unit with as few rights as possible, on macOS a launchd agent.
The service is this user's, or with --system the machine's. It is started only with --now.

  forerun edge install-service --print
  forerun edge install-service --now
  sudo forerun edge install-service --system"""

UNIT, AGENT = "forerun-edge.service", "forerun.edge.plist"
TEMPLATES = Path(forerun.__file__).with_name("units")
SYSTEM_UNITS = Path("/etc/systemd/system")
MARK = "Written by `forerun edge install-service`"
"""Text by which both commands recognize their own file."""

HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
"""Folders that ProtectHome hides."""

OWN_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/dev"))  # noqa: S108 - named, not written
"""Folders that PrivateTmp and PrivateDevices replace by the service's own."""


@dataclass(frozen=True, kw_only=True)
class InstallOptions(ConfigOption, JsonOption):
    """Declares what is installed."""

    only_print: bool = setting(False, "print the service's file and write nothing", flag="--print")
    now: bool = setting(False, "enable and start the service")
    run_as: str = setting("", "existing user to run as, with --system (default: a temporary user)", "USER")
    gpu: bool = setting(False, "allow access to the devices of a GPU, also a Jetson's")

    def __post_init__(self) -> None:
        if self.run_as and not self.system:
            raise UserError("a user's own service runs as that user; --run-as needs --system")


def add_actions(actions: Any) -> None:
    """Add `install-service` and `uninstall-service`."""
    words = "write a systemd unit or a launchd agent"
    add_command(actions, "install-service", words, _install, InstallOptions, INSTALL)
    words = "stop the service and remove what install-service wrote"
    description = "Stop and disable the service and remove its file. State, models and settings stay."
    add_command(actions, "uninstall-service", words, _uninstall, DaemonOptions, description)


def _install(options: InstallOptions) -> int:
    paths, system, file = options.paths, options.system, _file(options.system)
    config = load_config({}, os.environ, paths.files_read(options.config)).config
    if system and not options.run_as:
        _check_homes(config)
    hub = paths.cache / "huggingface" if system else hub_home()
    folders = [] if system else [paths.state, paths.cache, hub]
    has_walls = system or _has_namespaces()
    chosen = ["--config", options.config.absolute()] if options.config else []
    text = _filled(
        file.name,
        mark=MARK,
        command=[sys.executable, "-P", "-m", "forerun", "edge", *chosen],
        service=config.service,
        paths=paths,
        hub=hub,
        system=system,
        user=options.run_as,
        gpu=options.gpu,
        folders=folders,
        written=_written(config),
        has_walls=has_walls,
    )
    if options.only_print:
        sys.stdout.write(text)
        return 0
    _check_ours(file)
    for folder in (file.parent, *folders):
        make_private(folder)
    write_out("the machine's service, which needs root," if system else "the service", file, text)
    file.chmod(0o644)
    start, _ = _commands(file, system)
    for step in start if options.now else ():
        _run(step)
    lines = [f"wrote {file}"]
    if not has_walls:
        lines.append("this kernel gives users no namespaces: protections that need them are omitted")
    if not options.now:
        lines += ["start it with:", *(f"  {shlex.join(step)}" for step in start)]
    if file.name == UNIT and not system:
        lines.append("to keep it running while you are logged out: loginctl enable-linger")
    _tell(options, {"written": str(file), "started": options.now}, "\n".join(lines))
    return 0


def _uninstall(options: DaemonOptions) -> int:
    file = _file(options.system)
    if not file.is_file():
        _tell(options, {"removed": False}, f"there is no {file}")
        return 1
    _check_ours(file)
    for step in _commands(file, options.system)[1]:
        with contextlib.suppress(UserError):  # it may not run
            _run(step)
    try:
        file.unlink()
    except OSError as error:
        raise UserError(f"{file} cannot be removed: {error.strerror or error}") from error
    _tell(options, {"removed": True, "file": str(file)}, f"removed {file}")
    return 0


def _filled(template: str, **values: Any) -> str:
    """Return the text of a service's file."""
    from jinja2 import Environment, StrictUndefined

    is_xml = template == AGENT
    form = Environment(trim_blocks=True, undefined=StrictUndefined, autoescape=is_xml)  # noqa: S701
    form.filters["word"] = _word
    return form.from_string((TEMPLATES / template).read_text("utf-8")).render(values) + "\n"


def _word(text: object) -> str:
    """Quote and escape a word for a unit (systemd.syntax(7))."""
    word = str(text).replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{word}"' if not word or set(word) & set(" \t'\"\\;") else word


def _written(config: EdgeConfig) -> list[Path]:
    """Return the configured folders that the daemon writes to. Raise `UserError` for one of its own /tmp."""
    listen = config.api.listen
    socket = listen.removeprefix(UNIX) if listen.startswith(UNIX) else ""
    if any(folder in Path(socket).parents for folder in OWN_FOLDERS):
        raise UserError(
            f"api.listen is {listen}, but the service has its own /tmp and /dev, which no other program "
            "sees; use a socket in the runtime folder (`forerun edge config path`)"
        )
    return [Path(each).parent for each in (config.log.file, config.api.token_file, socket) if each]


def _check_homes(config: EdgeConfig) -> None:
    """Raise `UserError` if the program or its configuration is in a home folder."""
    program = (Path(sys.executable).resolve(), Path(sys.prefix), Path(forerun.__file__).resolve())
    paths = [entry for entry in SCHEMA.entries if entry.setting.is_path]
    configs = (config, *config.pairs.values())
    named = [getattr(getattr(each, entry.section), entry.field) for each in configs for entry in paths]
    files = [*program, *(Path(each) for each in named if each and not is_remote(each))]
    for file in files:
        if any(home in file.parents for home in HOMES):
            raise UserError(
                f"{file} is in somebody's home, which the service's own user cannot read; "
                "move it, for example below /opt, or name a user with --run-as"
            )


def _has_namespaces() -> bool:
    """Try whether users may have namespaces, which some kernels and security modules forbid."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return True


def _check_ours(file: Path) -> None:
    """Raise `UserError` if the file is there and was not written by this command."""
    try:
        if file.exists() and MARK not in file.read_text("utf-8", "replace"):
            raise UserError(f"{file} was not written by this command; check it, then remove it")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error


def _file(system: bool) -> Path:
    """Return the service's file. Raise `UserError` for a kind of service that this system lacks."""
    is_mac = sys.platform == "darwin"
    if not is_mac:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return (SYSTEM_UNITS if system else config / "systemd" / "user") / UNIT
    if system:
        raise UserError("--system is for systemd; on macOS the agent belongs to a user: omit --system")
    return Path.home() / "Library" / "LaunchAgents" / AGENT


def _commands(file: Path, system: bool) -> tuple[list[list[str]], list[list[str]]]:
    """Return the commands that start a service of this file, and those that stop it."""
    if file.name == AGENT:
        start, stop = (
            ["launchctl", verb, f"gui/{os.getuid()}", str(file)] for verb in ("bootstrap", "bootout")
        )
        return [start], [stop]
    systemctl = ["systemctl"] if system else ["systemctl", "--user"]
    start, stop = ([*systemctl, verb, "--now", UNIT] for verb in ("enable", "disable"))
    return [[*systemctl, "daemon-reload"], start], [stop]


def _run(command: list[str]) -> None:
    """Run a command. Raise `UserError` if it fails."""
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", "") or getattr(error, "strerror", "") or error).strip()
        words = f"{shlex.join(command)} failed: {reason}; start the daemon with: forerun edge"
        raise UserError(words) from error


def _tell(options: JsonOption, told: dict[str, Any], words: str) -> None:
    print(json.dumps(told) if options.json else words)
