"""Serve edges beside an engine that runs: the command of both plug-ins."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from cloud_verifier.core.engine_protocol import TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.server.serving import serve_worker
from cloud_verifier.settings import IdentitySection, OperationsSection, ServerSection
from common.acceptance import AcceptanceRule
from common.config.command_line import add_flags, flags_from
from common.config.merge import load_config
from common.config.setting import Schema, check_section, setting
from common.errors import ForerunError, UserError
from common.sampling import NO_ADVICE
from common.wire.describe import TokenTable
from forerun.log_format import writing
from forerun_beside.http import connect
from forerun_beside.mailbox import VARIABLE, Sender, path_of
from forerun_beside.scheduler import RequestScheduler
from forerun_beside.worker import EngineClient, RequestWorker

DEFAULT_SLOTS = 2**20


@dataclass(frozen=True, slots=True)
class EngineSection:
    """The engine section names the engine that runs and what it may be asked."""

    url: str = setting("", "address of the engine's HTTP server; required", form="http://HOST:PORT")
    model: str = setting("", "folder or hub id of the engine's model, for its tokenizer; required")
    name: str = setting("", "the model's name for edges; empty: as `model`")
    max_sessions: int = setting(
        32, "sessions open at once; the engine's own limit of requests or less", unit="sessions", low=1
    )
    slots: int = setting(
        DEFAULT_SLOTS,
        "tokens that all sessions may reserve, prompts and longest texts; the engine's KV size",
        unit="tokens",
        low=1,
    )
    max_positions: int = setting(
        0, "longest prompt and text, as the engine is set; 0: as the model", unit="tokens", low=0
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class BesideConfig:
    engine: EngineSection = field(default_factory=EngineSection)
    server: ServerSection = field(default_factory=ServerSection)
    identity: IdentitySection = field(default_factory=IdentitySection)
    operations: OperationsSection = field(default_factory=OperationsSection)


SCHEMA = Schema(BesideConfig, "FORERUN_BESIDE_", is_flat=True)


def main(make: Callable[[httpx.AsyncClient], EngineClient], program: str) -> int:
    """Run the command `program`, whose engine's client `make` makes."""
    parser = argparse.ArgumentParser(
        program,
        description=f"Serve edges beside an engine that runs. {VARIABLE} names the socket by which drafts "
        "reach it, in this process and in the engine's; FORERUN_ENGINE_KEY holds the engine's API key.",
    )
    add_flags(parser, SCHEMA)
    options = parser.parse_args()
    try:
        config = load_config(SCHEMA, flags_from(options, SCHEMA), os.environ, []).config
        with writing(config.operations.log_level, config.operations.log_format):
            asyncio.run(serve(config, make))
    except ForerunError as error:
        parser.exit(2, f"{program}: {error}\n")
    return 0


async def serve(config: BesideConfig, make: Callable[[httpx.AsyncClient], EngineClient]) -> None:
    """Serve until a signal arrives. Raises `UserError`."""
    engine = config.engine
    if not engine.url or not engine.model:
        raise UserError("--url and --model are required: the engine's address and its model")
    info, table = read_target(engine.model, engine.slots, engine.name, engine.max_positions)
    if config.server.sampling_defaults != "model":
        info = replace(info, sampling_defaults=NO_ADVICE)
    sender = Sender(path_of(os.environ))
    async with connect(engine.url, os.environ.get("FORERUN_ENGINE_KEY", "")) as http:
        client = make(http)
        rules = tuple(rule for rule in client.rules if rule in config.server.rules)
        limits = limits_of(engine.max_sessions, rules)
        scheduler = RequestScheduler(info, limits, client.refuse)
        worker = RequestWorker(client, scheduler, sender)
        await serve_worker(config.server, config.identity, config.operations, worker, table, announce)
    sender.close()


def limits_of(max_sessions: int, rules: tuple[AcceptanceRule, ...]) -> SchedulerConfig:
    """Return the limits of a verifier whose engine evaluates as it likes. The text is reserved whole."""
    return SchedulerConfig(
        max_sessions=max_sessions, promised_text=2**31 - 1, prefix_cache=False, rules=rules
    )


def announce(info: TargetInfo, address: str, besides: Mapping[str, str]) -> None:
    print(json.dumps({"listening": address, "model": info.name, **besides}), flush=True)


def read_target(
    model: str, num_slots: int, name: str = "", max_positions: int = 0
) -> tuple[TargetInfo, TokenTable]:
    """Read from a model's folder or hub id what edges must know of it, without the weights.

    `name`, if given, and `max_positions` above 0 replace the model's own. Raises `UserError`.
    """
    from cloud_verifier.engine.model.checkpoint import describe  # imports transformers

    info, table = describe(model, num_slots)
    most = max_positions or info.max_positions
    return replace(info, name=name or Path(model).name, max_positions=most), table
