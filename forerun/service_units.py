"""The daemon as a service: a hardened systemd unit, or a launchd property list, as text.

What is left open is what a daemon needs that drafts on the processor and speaks to verifiers anywhere: the
network over IPv4, IPv6 and unix sockets, its own folders, and memory. `systemd-analyze security` rates it.
"""

from __future__ import annotations

import plistlib
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from edge_client.config import ServiceSection
from edge_client.paths import APPLICATION, EdgePaths

UNIT = "forerun-edge.service"
LABEL = "forerun.edge"
MARK = "Written by `forerun edge install-service`"
"""By which `uninstall-service` knows its own."""

KILL_AFTER = 10.0
"""Seconds beyond the daemon's own limit for its end, after which it is killed."""

START_LIMIT = 120
"""Seconds to become ready; it serves before the draft model is loaded."""

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
"""What an accelerator's driver opens, by kind; "": the processor only."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What a unit is made from."""

    command: tuple[str, ...]  # the daemon's, its program absolute
    paths: EdgePaths
    service: ServiceSection
    system: bool = False  # of the whole machine, not of one user
    user: str = ""  # a system's: whom it runs as; empty: a user that exists only while it runs
    device: str = ""  # a key of DEVICES
    in_home: tuple[Path, ...] = ()  # files of its program and its configuration that are in somebody's home
    writable: tuple[Path, ...] = ()  # folders beside its own that it writes to
    namespaces: bool = True  # a user's: whether the kernel gives users namespaces, which most walls need
    denies_write_execute: bool = True  # whether memory that is written can never run

    def __post_init__(self) -> None:
        if not self.command or not Path(self.command[0]).is_absolute():
            raise UserError("the service's program must be an absolute path")
        if self.user and not self.system:
            raise UserError("a user's own service runs as that user; --run-as belongs to --system")
        if self.in_home and self.system and not self.user:
            raise UserError(
                f"{self.in_home[0]} is in somebody's home, where a user of the service's own cannot read: "
                "put it elsewhere, for example below /opt, or name a user with --run-as"
            )


def systemd_unit(plan: ServicePlan) -> str:
    """The unit's text."""
    sections = {
        "Unit": _unit(plan),
        "Service": [*_running(plan), *_places(plan), *_walls(plan)],
        "Install": [f"WantedBy={'multi-user' if plan.system else 'default'}.target"],
    }
    parts = ["\n".join([f"[{name}]", *lines, ""]) for name, lines in sections.items()]
    return "\n".join([f"# {MARK}; put changes into a drop-in: systemctl edit.", *parts])


def launchd_plist(plan: ServicePlan) -> bytes:
    """The property list of a user's agent."""
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
        "ProcessType": "Interactive",  # somebody waits for each token; others are slowed down to save power
        "WorkingDirectory": str(plan.paths.state),
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "Umask": 0o077,
        "SoftResourceLimits": {"Core": 0},
        "EnvironmentVariables": {"PYTHONDONTWRITEBYTECODE": "1"},
    }
    head, _, rest = plistlib.dumps(found, sort_keys=False).partition(b"<plist")
    return head + f"<!-- {MARK} -->\n<plist".encode() + rest


def _unit(plan: ServicePlan) -> list[str]:
    network = ["Wants=network-online.target", "After=network-online.target"] if plan.system else []
    return [
        "Description=Forerun edge daemon",
        *network,
        "StartLimitIntervalSec=300",
        "StartLimitBurst=10",
    ]


def _running(plan: ServicePlan) -> list[str]:
    """How it starts, lives, ends, and starts again."""
    watchdog = [f"WatchdogSec={plan.service.watchdog:g}"] if plan.service.watchdog else []
    return [
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={' '.join(_word(each) for each in plan.command)}",
        "Environment=PYTHONDONTWRITEBYTECODE=1",
        f"TimeoutStartSec={START_LIMIT}",
        f"TimeoutStopSec={plan.service.stop_timeout + KILL_AFTER:g}",
        *watchdog,
        "Restart=on-failure",
        f"RestartSec={plan.service.restart_delay:g}",
        "KillMode=mixed",
        "UMask=0077",
        "# A memory dump would hold prompts.",
        "LimitCORE=0",
    ]


def _places(plan: ServicePlan) -> list[str]:
    """Whom it runs as, and what it may write."""
    if not plan.system:
        own = (plan.paths.state, plan.paths.models, plan.paths.cache)
        return [f"RuntimeDirectory={APPLICATION}", "RuntimeDirectoryMode=0700", *_writable(plan, own)]
    names = ("State", "Cache", "Runtime")
    return [
        *([f"User={plan.user}"] if plan.user else ["DynamicUser=yes"]),
        *(f"{name}Directory={APPLICATION}" for name in names),
        *(f"{name}DirectoryMode=0700" for name in names),
        f"ConfigurationDirectory={APPLICATION}",
        "ConfigurationDirectoryMode=0755",
        "RemoveIPC=yes",
        *_writable(plan, ()),
    ]


def _writable(plan: ServicePlan, own: tuple[Path, ...]) -> list[str]:
    """Its own folders are there; of others that are not, the daemon itself tells best."""
    if not (plan.system or plan.namespaces):
        return []  # nothing is closed
    more = [f"-{folder}" for folder in plan.writable]
    return [f"ReadWritePaths={_word(each)}" for each in dict.fromkeys([*map(str, own), *more])]


def _walls(plan: ServicePlan) -> list[str]:
    """What it never does is taken from it."""
    return [
        "NoNewPrivileges=yes",
        *_memory(plan),
        "LockPersonality=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "RestrictNamespaces=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "SystemCallArchitectures=native",
        "SystemCallFilter=@system-service",
        "SystemCallFilter=~@privileged @resources",
        "SystemCallErrorNumber=EPERM",
        *(_namespaces(plan) if plan.system or plan.namespaces else []),
    ]


def _memory(plan: ServicePlan) -> list[str]:
    if plan.device:
        return ["# No MemoryDenyWriteExecute: drivers of accelerators compile kernels as they are needed."]
    return ["MemoryDenyWriteExecute=yes"] if plan.denies_write_execute else []


def _namespaces(plan: ServicePlan) -> list[str]:
    """What needs a view of the system of its own. /proc stays whole (no ProcSubset=pid): the daemon's file
    names the boot that it runs in."""
    home = "read-only" if plan.in_home or not plan.system else "yes"
    return [
        *_users(plan),
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        "ProtectSystem=strict",
        f"ProtectHome={home}",
        "PrivateTmp=yes",
        "PrivateMounts=yes",
        *_devices(plan),
        "ProtectProc=invisible",
        "ProtectClock=yes",
        "ProtectHostname=yes",
        "ProtectKernelLogs=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelTunables=yes",
        "ProtectControlGroups=yes",
    ]


def _users(plan: ServicePlan) -> list[str]:
    """A user namespace of its own. A user's manager can take capabilities away only inside
    one: without it, systemd 252 ends the service with 218/CAPABILITIES. The machine's manager needs none, and
    the groups that may open an accelerator would be nobody's there."""
    return [] if plan.system and plan.device else ["PrivateUsers=yes"]


def _devices(plan: ServicePlan) -> list[str]:
    if not plan.device:
        return ["PrivateDevices=yes", "DevicePolicy=closed"]
    cache = _word(f"CUDA_CACHE_PATH={plan.paths.cache / 'cuda'}")
    groups = ["SupplementaryGroups=video render"] if plan.system else []
    allowed = [f"DeviceAllow={each}" for each in DEVICES[plan.device]]
    return ["DevicePolicy=closed", *allowed, *groups, f"Environment={cache}"]


def _word(text: str) -> str:
    """As systemd reads it back: its own signs doubled, in quotes where it must be (systemd.syntax(7))."""
    text = text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return f'"{text}"' if not text or set(text) & set(" \t'\"\\;") else text
