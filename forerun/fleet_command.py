"""`forerun fleet`: many devices, one broker, and an operator with a key."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UnavailableError, UserError
from forerun.edge_tls import add_edge_tls
from forerun.fleet_options import add_broker, add_key, broker_from, needed
from forerun.fleet_table import device_line, device_table, offer_table

if TYPE_CHECKING:
    from edge_client.fleet.operator import Operator, Signer

DESCRIPTION = """\
Devices that run `forerun edge` with a broker tell how they are, and take signed orders. The broker is
never on the way of a generation: without it, devices go on as they are (docs/fleet.md).

  forerun fleet keygen fleet.key          devices get fleet.key.pub, you keep fleet.key
  forerun fleet list
  forerun fleet set draft.policy=chain --all --key fleet.key
  forerun fleet kill draft_off --key fleet.key"""

MODES = ("none", "draft_off", "remote_off", "halt")
COMMANDS = ("ping", "report", "reload_config", "unload_draft", "load_draft", "rebirth")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "fleet",
        help="see and steer many devices over an MQTT broker",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_keygen(actions)
    _add_views(actions)
    _add_set(actions)
    _add_kill(actions)
    _add_command(actions)
    _add_announce(actions)


def _action(
    actions: Any, name: str, words: str, run: Callable[[argparse.Namespace], Coroutine[Any, Any, None]]
) -> Any:
    parser = actions.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
    add_broker(parser)
    parser.set_defaults(run=lambda options: _run(run, options))
    return parser


def _add_keygen(actions: Any) -> None:
    parser = actions.add_parser(
        "keygen", help="make a pair of keys: orders are signed by one, believed by the other"
    )
    parser.add_argument(
        "path", metavar="FILE", help="of the private key (mode 0600); FILE.pub is the public one"
    )
    parser.set_defaults(run=_keygen)


def _add_views(actions: Any) -> None:
    for name, words, run in (
        ("list", "show every device", _list),
        ("verifiers", "show every verifier that offers itself", _verifiers),
    ):
        parser = _action(actions, name, words, run)
        parser.add_argument("--json", action="store_true", help="an object a line")
        _add_wait(parser, "seconds without a message after which the listing ends", 1.0)
        if run is _verifiers:
            parser.add_argument(
                "--public-key", metavar="KEY", help="a public key's file, to tell which offers it signed"
            )
    parser = _action(actions, "watch", "show births, deaths and events as they come, until Ctrl-C", _watch)
    parser.add_argument("--json", action="store_true", help="an object a line")


def _add_set(actions: Any) -> None:
    parser = _action(actions, "set", "give a device, or all, its configuration", _set)
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="replace all that stood; none: set nothing"
    )
    whom = parser.add_mutually_exclusive_group(required=True)
    whom.add_argument("--device", metavar="NAME", help="one device; its settings beat those of --all")
    whom.add_argument("--all", action="store_true", help="every device")
    _add_signing(parser, "30d")
    _add_wait(parser, "seconds for the device's answer; 0 for not waiting", 10.0)


def _add_kill(actions: Any) -> None:
    parser = _action(actions, "kill", "stop something on every device, or let it go on", _kill)
    parser.add_argument("mode", choices=MODES, help="none lets all go on")
    _add_signing(parser, "30d")


def _add_command(actions: Any) -> None:
    parser = _action(
        actions, "command", "tell one device to do something now, and wait for its answer", _command
    )
    parser.add_argument("name", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--device", metavar="NAME", required=True)
    parser.add_argument("--id", metavar="ID", help="the same id is carried out once (drawn if not given)")
    _add_signing(parser, "10m")
    _add_wait(parser, "seconds for the answer", 10.0)


def _add_announce(actions: Any) -> None:
    parser = _action(actions, "announce", "offer a verifier to the fleet until stopped", _announce)
    parser.add_argument("--endpoint", metavar="HOST:PORT", required=True, help="where devices reach it")
    parser.add_argument("--ask", metavar="HOST:PORT", help="where we reach it (the endpoint)")
    parser.add_argument("--name", metavar="NAME", required=True, help="of the verifier, in topics")
    parser.add_argument("--region", metavar="NAME", default="")
    parser.add_argument(
        "--interval", type=float, default=30.0, metavar="S", help="between looks (%(default)s)"
    )
    parser.add_argument(
        "--once", action="store_true", help="offer it once and leave the offer until it expires"
    )
    parser.add_argument(
        "--unsigned", action="store_true", help="for devices that allow the endpoint by a pattern"
    )
    add_key(parser)
    add_edge_tls(parser)


def _add_signing(parser: argparse.ArgumentParser, lifetime: str) -> None:
    add_key(parser)
    parser.add_argument(
        "--expires",
        default=lifetime,
        metavar="TIME",
        help="how long it holds: 90s, 10m, 12h, 30d (%(default)s)",
    )


def _add_wait(parser: argparse.ArgumentParser, words: str, default: float) -> None:
    parser.add_argument("--wait", type=float, default=default, metavar="S", help=f"{words} (%(default)s)")


def _run(work: Callable[[argparse.Namespace], Coroutine[Any, Any, None]], options: argparse.Namespace) -> int:
    if find_spec("aiomqtt") is None or find_spec("nacl") is None:
        raise UserError("aiomqtt and pynacl are not installed; pip install 'forerun[edge]'")
    asyncio.run(work(options))
    return 0


def _keygen(options: argparse.Namespace) -> int:
    if find_spec("nacl") is None:
        raise UserError("pynacl is not installed; pip install 'forerun[edge]'")
    from edge_client.fleet.keys import generate, public_path

    path = Path(options.path)
    public = generate(path)
    print(f"private key  {path}  (keep it away from devices and from the broker)")
    print(f"public key   {public_path(path)}  {public.hex()}")
    return 0


def _operator(options: argparse.Namespace) -> Operator:
    from edge_client.fleet.operator import Operator

    broker = broker_from(options)
    return Operator(broker, needed(options, "tenant"), broker.context())


def _signer(options: argparse.Namespace) -> Signer:
    from edge_client.fleet.keys import read_private, signer
    from edge_client.fleet.operator import Signer

    return Signer(needed(options, "tenant"), signer(read_private(Path(needed(options, "key")))), time.time)


async def _list(options: argparse.Namespace) -> None:
    async with _operator(options) as operator:
        await operator.listen(operator.topics.devices)
        await operator.settle(options.wait)
        devices = list(operator.roster())
    if options.json:
        for name, found in devices:
            print(json.dumps({"device": name, **found.as_json()}))
    else:
        print("\n".join(device_table(devices, time.time())))


async def _verifiers(options: argparse.Namespace) -> None:
    from edge_client.fleet.keys import read_public, verifier

    keys = [read_public(options.public_key)] if options.public_key else []
    async with _operator(options) as operator:
        await operator.listen(operator.topics.verifiers)
        await operator.settle(options.wait)
        offers = operator.offers(verifier(keys))
    if options.json:
        for name, (status, signed) in sorted(offers.items()):
            print(json.dumps({"verifier": name, "signed": signed, **status.as_json()}))
    else:
        print("\n".join(offer_table(offers, time.time())))


async def _watch(options: argparse.Namespace) -> None:
    from edge_client.core.fleet.payloads import Event, Presence
    from edge_client.core.fleet.presence import Roster
    from edge_client.fleet.operator import read

    roster = Roster()
    async with _operator(options) as operator:
        topics = operator.topics
        await operator.listen(topics.devices, topics.device_events)
        async with aclosing(operator.changes()) as changes:
            async for topic, payload in changes:
                name, found = topics.device_of(topic), read(Presence, payload)
                if name and found and roster.on_presence(name, found):
                    _say(options, name, found.as_json(), device_line(name, found, time.time()))
                teller, event = topics.teller_of(topic), read(Event, payload)
                if teller and event:
                    more = "" if event.number is None else f" ({event.number:g})"
                    _say(options, teller, event.as_json(), f"{teller}  {event.kind.value}{more}")


def _say(options: argparse.Namespace, device: str, found: dict[str, Any], line: str) -> None:
    print(json.dumps({"device": device, **found}) if options.json else line, flush=True)


async def _set(options: argparse.Namespace) -> None:
    signer, values = _signer(options), dict(_setting(one) for one in options.settings)
    rev, payload = signer.config(options.device, values, _lifetime(options.expires))
    async with _operator(options) as operator:
        shared = operator.topics
        if options.all:
            await operator.publish(shared.fleet_config, payload)
            print(f"revision {rev} waits for every device; their config/reported tell who has it")
            return
        await operator.listen(operator.device(options.device).reported)
        await operator.publish(operator.device(options.device).desired, payload)
        await _tell_answer(operator, options, rev)


async def _tell_answer(operator: Operator, options: argparse.Namespace, rev: int) -> None:
    """What the device says of it. Raises `UserError` if it refused it, `UnavailableError` for silence."""
    from edge_client.core.fleet.payloads import Reported

    if not options.wait:
        print(f"revision {rev} waits for {options.device}")
        return
    topic = operator.device(options.device).reported
    try:
        answer = await operator.answer(
            topic, Reported, lambda found: rev in (found.rev, found.refused_rev), options.wait
        )
    except UnavailableError as error:
        raise UnavailableError(f"revision {rev} is published and waits at the broker, but {error}") from error
    if answer.refused_rev == rev:
        faults = ", ".join(f"{one.key or 'the order'}: {one.fault.value}" for one in answer.errors)
        raise UserError(f"{options.device} refused revision {rev} ({faults}); what it had before stands")
    print(f"{options.device} has taken revision {rev}")


async def _kill(options: argparse.Namespace) -> None:
    from edge_client.core.fleet.payloads import Kill

    rev, payload = _signer(options).kill(Kill(options.mode), _lifetime(options.expires))
    async with _operator(options) as operator:
        await operator.publish(operator.topics.kill, payload)
    print(f"{options.mode} stands for every device for {options.expires}, revision {rev}")


async def _command(options: argparse.Namespace) -> None:
    from edge_client.core.fleet.payloads import Ack, Outcome

    command_id = options.id or secrets.token_hex(8)
    lifetime = _lifetime(options.expires)
    payload = _signer(options).command(options.device, command_id, options.name, lifetime)
    async with _operator(options) as operator:
        topics = operator.device(options.device)
        await operator.listen(topics.ack(command_id))
        await operator.publish(
            topics.command(command_id), payload, retain=False, expiry=max(1, int(lifetime))
        )
        ack = await operator.answer(
            topics.ack(command_id), Ack, lambda found: found.id == command_id, options.wait
        )
    if ack.outcome is not Outcome.DONE:
        raise UserError(f"{options.device} answered {ack.outcome.value} to {options.name}")
    print(f"{options.device} has done {options.name} (id {command_id})")


async def _announce(options: argparse.Namespace) -> None:
    from forerun.fleet_announce import announce

    await announce(options, None if options.unsigned else _signer(options))


def _setting(text: str) -> tuple[str, Any]:
    key, equals, found = text.partition("=")
    if not equals:
        raise UserError(f"{text!r} is no setting; write KEY=VALUE")
    try:
        parsed = json.loads(found)
    except ValueError:
        parsed = found
    if isinstance(parsed, list | dict) or parsed is None:
        raise UserError(f"{key} is set to {found}; a fleet sets true, false, numbers and texts only")
    return key, parsed


def _lifetime(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if not found:
        raise UserError(f"--expires is {text!r}; write 90s, 10m, 12h or 30d")
    return float(found[1]) * UNITS[found[2]]
