"""Implements `forerun fleet`: an operator with a key steers many devices over one broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from edge_client.fleet.document import Document, Kill, PayloadError, desired_topic, read_report, seal, topic
from edge_client.process.run_file import daemons_config
from edge_client.settings import TOPIC_LEVEL, FleetSection, load_config
from forerun.commands.daemon_table import duration
from forerun.options import ConfigOption
from forerun.terminal import table

DESCRIPTION = """\
Watch and steer devices that run `forerun edge` with a broker. Each device publishes its status and applies
one signed document of desired settings. No generation needs the broker: without it, devices keep their
settings (docs/fleet.md). The broker is that of [fleet] in the configuration.

  forerun fleet keys fleet.key            devices get fleet.key.pub, you keep fleet.key
  forerun fleet status
  forerun fleet publish draft.policy=chain --key fleet.key
  forerun fleet publish --kill draft_off --key fleet.key"""

DAY = 86400.0
LONGEST_LIFETIME = 400.0
"""Longest lifetime of a document, in days: a year, and some days to renew it."""

MAX_DEVICES = 20_000
"""Most devices that an operator sees, whatever the broker sends."""

LABELS = ("state", "mode", "kill", "draft", "verifier", "version")
FIGURES = ("applied", "refused", "tokens")
TITLES = ("DEVICE", *(name.upper() for name in LABELS + FIGURES), "ACCEPTED", "RTT", "SINCE")


@dataclass(frozen=True, kw_only=True)
class StatusOptions(ConfigOption):
    """Declares how devices are listed."""

    json: bool = setting(False, "print an object a line")
    wait: float = setting(2.0, "seconds to listen", "S")


@dataclass(frozen=True, kw_only=True)
class PublishOptions(ConfigOption):
    """Declares the document's content."""

    settings: tuple[str, ...] = setting(
        None, "settings; replace all earlier ones", "KEY=VALUE", nargs="*", is_argument=True
    )
    kill: str = setting("none", "kill switch", choices=tuple(each.value for each in Kill))
    key: Path = setting(REQUIRED, "private key made by `forerun fleet keys`", "FILE")
    days: float = setting(30.0, "lifetime in days", "N", above=0, high=LONGEST_LIFETIME)


@dataclass(frozen=True, kw_only=True)
class KeysOptions:
    """Declares where the keys are written."""

    path: Path = setting(
        REQUIRED, "file for the private key; FILE.pub is the public one", "FILE", is_argument=True
    )


def add_parser(commands: Any) -> None:
    words = "watch and steer many devices over an MQTT broker"
    parser = add_command(commands, "fleet", words, description=DESCRIPTION)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    words = "make a key pair: the operator signs with it, and devices verify"
    add_command(actions, "keys", words, _keys, KeysOptions)
    add_command(actions, "status", "show every device", partial(_run, status), StatusOptions)
    words = "sign the document for every device and publish it"
    add_command(actions, "publish", words, partial(_run, publish), PublishOptions)


def _run(action: Callable[[Any, FleetSection], Coroutine[Any, Any, None]], options: Any) -> int:
    fleet = daemons_config(options.paths, options.config).config.fleet
    if not fleet.broker:
        raise UserError("no broker is configured; set fleet.broker in the file of --config (docs/fleet.md)")
    asyncio.run(action(options, fleet))
    return 0


def _keys(options: KeysOptions) -> int:
    from edge_client.fleet.keys import generate, public_path

    public = generate(options.path)
    print(f"private key  {options.path}  (do not copy it to devices or the broker)")
    print(f"public key   {public_path(options.path)}  {public.hex()}")
    return 0


async def publish(options: PublishOptions, fleet: FleetSection) -> None:
    """Sign the document and publish it, retained. Its version is the time in milliseconds since 1970, so no
    operator needs the last version."""
    from edge_client.fleet.keys import read_private, signer
    from edge_client.fleet.mqtt import connected

    settings, at = dict(map(_setting, options.settings)), time.time()
    load_config({}, {}, (), settings)  # raises for what no device of this version takes
    document = Document(
        tenant=fleet.tenant,
        version=int(at * 1000),
        expires_at=at + options.days * DAY,
        kill=Kill(options.kill),
        settings=settings,
    )
    try:
        payload = seal(document, signer(read_private(options.key)))
    except PayloadError as error:
        raise UserError(f"no device would accept this document: {error}") from error
    async with connected(fleet, _client_name()) as client:
        await client.publish(desired_topic(fleet.tenant), payload, qos=1, retain=True)
    print(f"version {document.version} is published; `forerun fleet status` shows which devices applied it")


async def status(options: StatusOptions, fleet: FleetSection) -> None:
    """Print what devices have published."""
    from edge_client.fleet.mqtt import connected, subscribe

    roster = Roster()
    async with connected(fleet, _client_name(), max_unread=MAX_DEVICES) as client:
        await subscribe(client, topic(fleet.tenant, "+", "status"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.wait):
                async for message in client.messages:
                    roster.on_message(message.topic.value, message.payload)
    names = sorted(roster.reports)
    if options.json:
        print("\n".join(map(roster.as_json, names)))
    elif names:
        print("\n".join(table(TITLES, map(roster.row, names), left=TITLES)))
    else:
        print("no device has published a status; check fleet.tenant and the broker's access rules")


class Roster:
    """Holds the last report of each device."""

    def __init__(self) -> None:
        self.reports = dict[str, tuple[dict[str, str], dict[str, float]]]()

    def on_message(self, place: str, payload: bytes) -> None:
        """Take a message. Strangers may write there."""
        device = place.removesuffix("/status").rpartition("/")[2]
        is_full = device not in self.reports and len(self.reports) >= MAX_DEVICES
        if TOPIC_LEVEL.fullmatch(device) and not is_full:
            with contextlib.suppress(PayloadError):
                self.reports[device] = read_report(payload)

    def as_json(self, device: str) -> str:
        labels, figures = self.reports[device]
        return json.dumps({"device": device, **labels, **figures})

    def row(self, device: str) -> list[str]:
        labels, figures = self.reports[device]
        drafted, rtt = figures.get("drafted"), figures.get("rtt_ms")
        cells = (
            *map(labels.get, LABELS),
            *map(figures.get, FIGURES),
            f"{figures.get('accepted', 0) / drafted:.0%}" if drafted else None,
            f"{rtt:.0f} ms" if rtt is not None else None,
            duration(max(0.0, time.time() - figures.get("at", 0))),
        )
        return [device, *("-" if cell is None else str(cell) for cell in cells)]


def _client_name() -> str:
    return f"forerun-operator-{secrets.token_hex(4)}"


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"{text!r} is no setting; write KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
