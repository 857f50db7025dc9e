"""Implements `forerun verify`: loads a target model and serves it to edges."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud_verifier.model_source import drafter_kind, folder_of
from cloud_verifier.progress import LoggedProgress, no_progress
from cloud_verifier.settings import SCHEMA, TargetSection, VerifierConfig
from common.config.command_line import add_flags, flags_from
from common.config.merge import DEFAULT, load_config
from common.errors import UserError
from common.privacy import Privacy
from common.wire.free_port import check_free
from edge_client.process.paths import find_paths
from forerun.cli import SERVE, leave
from forerun.commands.pair import Pairing
from forerun.log_format import writing
from forerun.options import add_server_words, joined_address

if TYPE_CHECKING:
    from cloud_verifier.core.engine_protocol import TargetEngine, TargetInfo
    from cloud_verifier.server.serving import Announce

DESCRIPTION = """\
Load a causal language model, check that Forerun's packed evaluation of it is right, and serve it to edges
over gRPC. The model is a local folder in Hugging Face format, a hub id, or a GGUF file. On SIGTERM the
verifier asks every session to move elsewhere, waits at most --grace seconds and ends.

  forerun serve lab/demo_models/target --port 50051

A TOML file (--config FILE) or the environment (FORERUN_VERIFY_MODEL) can also set every option. An option
given here overrides the environment, and the environment overrides the file. With --check the verifier only
loads and probes the model: exit code 0 if it can be served, else 2 with a message."""


LISTEN = "server.listen"
PAIRED_LISTEN = "0.0.0.0:50051"
"""Where a paired verifier listens if nothing is configured."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        aliases=[SERVE],
        help="serve a target model to edges (the server side)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all verifier settings."""
    parser.add_argument("argument", nargs="?", metavar="MODEL", help="the target, as of --model")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the settings below")
    add_flags(parser, SCHEMA)
    parser.add_argument(
        "--pair",
        action="store_true",
        help="let devices of one pairing in, from other machines, and print its line (`forerun pair`)",
    )
    add_server_words(parser, SCHEMA.by_name["operations.log_level"])


def config_of(options: argparse.Namespace) -> VerifierConfig:
    """Load the configuration from the file, the environment and the options. Raise `UserError`."""
    flags, named = flags_from(options, SCHEMA), options.argument
    if named is not None and flags.setdefault("target.model", named) != named:
        raise UserError(f"two targets are named, {flags['target.model']} and {named}; name one")
    if options.pair:
        flags |= _paired(flags)
    if getattr(options, "log_level", None) is not None:  # it may also stand before the command
        flags.setdefault("operations.log_level", options.log_level)
    files = [] if options.config is None else [options.config]
    loaded = load_config(SCHEMA, flags, os.environ, files)
    server, is_usual = loaded.config.server, loaded.origins[LISTEN].layer == DEFAULT
    listen = joined_address(options, LISTEN, PAIRED_LISTEN if options.pair and is_usual else server.listen)
    return replace(loaded.config, server=replace(server, listen=listen))


def _paired(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of this user's pairing, whose files are made if need be. Raise `UserError`."""
    pairing = Pairing.of(find_paths(os.environ))
    own = {
        "server.tls_cert": pairing.cert,
        "server.tls_key": pairing.key,
        "identity.secret_file": pairing.secret,
    }
    if given := sorted(own.keys() & flags.keys()):
        raise UserError(f"--pair sets {', '.join(given)} itself; leave them out, or --pair")
    pairing.make()
    return {name: str(path) for name, path in own.items()}


def run(options: argparse.Namespace) -> int:
    return serve_config(config_of(options))


def serve_config(
    config: VerifierConfig, around: Callable[[TargetEngine], TargetEngine] = lambda engine: engine
) -> int:
    """Load the target and serve it until a signal comes. `around` may wrap its engine. Raise `UserError`."""
    config = with_local_file(config)
    check(config)
    # Until it serves, and drains. A container's first process would ignore the signal until it is killed.
    signal.signal(signal.SIGTERM, leave)
    from cloud_verifier.server.serving import load, serve, use_torch

    with logged(config):
        if config.target.tensor_parallel:
            from forerun.commands.tensor_parallel import run_parallel

            leads = os.environ.get("RANK") == "0"  # torchrun sets it; other ranks would say the same
            use_torch(config.target, LoggedProgress() if leads else no_progress)
            return run_parallel(
                config,
                lambda engine, table, watch: asyncio.run(
                    serve(config, around(engine), table, announcer(config), watch)
                ),
            )
        # Before the event loop, so that Ctrl-C works meanwhile.
        checks = config.target.check
        engine, table = load(config, records=None if checks else find_paths(os.environ).state)
        if checks:
            _tell_checked(config, engine.info)
            return 0
        asyncio.run(serve(config, around(engine), table, announcer(config)))
    return 0


def with_local_file(config: VerifierConfig) -> VerifierConfig:
    """Return the configuration with the local file of a GGUF target. Raise as `find_model`."""
    target = config.target
    if not target.is_gguf:
        return config
    from common.llama.files import find_model

    file = find_model(target.path)
    return replace(config, target=replace(target, model=file, name=target.served_name))


def check(config: VerifierConfig) -> None:
    """Check files, addresses and libraries before the slow loading. Raise `UserError`."""
    check_models(config.target)
    from cloud_verifier.server.serving import identity_of, tls_of, training_log_of

    server, operations = config.server, config.operations
    _ = config.scheduler
    if (tls := tls_of(server)) is not None:
        tls.read()
    identity_of(config.identity)
    training_log_of(config.identity)
    if not config.target.check:
        check_free("--listen", server.listen)
    if operations.http:
        check_free("--http", operations.http)
        import prometheus_client  # noqa: F401 - only to see whether it is there


def check_models(target: TargetSection) -> None:
    """Check that the target and its drafter are there, or may be on the hub. Raise `UserError`."""
    if not target.is_gguf:
        folder_of(target.path)
    drafter = target.drafter
    if drafter and drafter_kind(drafter) is None and not Path(drafter).expanduser().is_file():
        folder_of(drafter)  # no file of `forerun heads train`


def logged(config: VerifierConfig) -> Any:
    """Return a context that writes the log as a server does."""
    return writing(config.operations.log_level, config.operations.log_format)


def _tell_checked(config: VerifierConfig, info: TargetInfo) -> None:
    """Say that the target passed the probe, which the log describes."""
    told = {"model": config.target.served_name, "served": True, "deterministic": info.repeats}
    words = f"{config.target.served_name} can be served."
    print(json.dumps(told) if config.operations.json else words, flush=True)


def announcer(config: VerifierConfig) -> Announce:
    """Return a function that prints the address and the model on standard output."""
    return partial(_announce_json if config.operations.json else _announce, config)


def _announce_json(
    config: VerifierConfig, info: TargetInfo, address: str, besides: Mapping[str, str]
) -> None:
    told = {
        "listening": address,
        "model": info.name,
        "deterministic": info.repeats,
        "privacy": config.server.privacy,
        "pid": os.getpid(),
        **besides,
    }
    if (pairing := _pairing(config)) is not None:
        told["pair"] = pairing.words(address)
    print(json.dumps(told), flush=True)


def _announce(config: VerifierConfig, info: TargetInfo, address: str, besides: Mapping[str, str]) -> None:
    lines = [f"Serving {info.name} on {address}; stop with Ctrl-C."]
    if (pairing := _pairing(config)) is not None:
        lines += ["On the device, once (the key is secret):", f"  forerun pair {pairing.words(address)}"]
    if config.server.privacy == Privacy.OFF.title:
        lines.append("Privacy off: message sizes reveal content, unless an edge asks for padding.")
    else:
        lines.append("Privacy padded: all messages of a direction have one size; timing still leaks.")
    if "http" in besides:
        lines.append(f"Metrics at http://{besides['http']}/metrics.")
        lines.append(f"Live sessions: forerun top --http {besides['http']}")
    if info.repeats:
        lines.append("Texts are bit-for-bit the same under any other load (docs/determinism.md).")
    elif config.target.is_gguf:
        lines.append("Equal requests may get different texts at near ties (docs/determinism.md).")
    if lossy := [rule.title for rule in config.server.rules if not rule.lossless]:
        lines.append(f"Sessions may ask for lossy acceptance rules: {', '.join(lossy)}.")
    print("\n".join(lines), flush=True)


def _pairing(config: VerifierConfig) -> Pairing | None:
    """Return the pairing of --pair; None without it."""
    pairing = Pairing.of(find_paths(os.environ))
    own = config.server.tls_cert, config.identity.secret_file
    return pairing if own == (pairing.cert, pairing.secret) else None
