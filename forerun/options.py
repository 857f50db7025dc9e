"""Declares options of the command line as fields of dataclasses, and the options that commands share."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from common.config.merge import Loaded
from common.config.pages import flags_from
from common.errors import UserError
from common.sampling import SamplingParams
from common.wire.grpc_options import host_and_port
from edge_client.process import run_file as daemon_file
from edge_client.process.paths import SYSTEM, EdgePaths, find_paths
from edge_client.settings import SCHEMA, EdgeConfig, load_config
from simulator.documents import write_error, write_whole

if TYPE_CHECKING:
    from common.llama.model import LlamaSettings
    from common.llama.runtime import LlamaRuntime

# Declared options ------------------------------------------------------------------------------------------

Settings = TypeVar("Settings")
METADATA, REQUIRED = "option", MISSING


def option(default: Any, words: str, metavar: str | None = None, **more: Any) -> Any:
    """Declare a field of a command's settings that an option sets.

    The option takes the field's name and type; a tuple makes it repeatable. Its help ends with the default.
    `more` are arguments of `add_argument`, or: `flag`, another name; `short`, a second name; `group`, the
    title of a group; `either`, the name of a group whose options exclude each other.
    """
    return field(default=default, metadata={METADATA: {"words": words, "metavar": metavar, **more}})


def argument(default: Any, words: str, metavar: str | None = None, **more: Any) -> Any:
    """Declare a field that a positional argument sets."""
    return option(default, words, metavar, flag="", **more)


def add_command(
    commands: Any,
    name: str,
    words: str,
    run: Callable[[Any], int] | None = None,
    settings: type[Any] | None = None,
    description: str = "",
) -> argparse.ArgumentParser:
    """Add a command. `run` takes its `settings`, or the parsed options if there are none."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=words,
        description=description or f"{words[:1].upper()}{words[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if settings is not None and run is not None:
        kind, carry_out = settings, run
        add_fields(parser, kind)
        parser.set_defaults(run=lambda options: carry_out(read_fields(options, kind)))
    elif run is not None:
        parser.set_defaults(run=run)
    return parser


def add_fields(parser: argparse.ArgumentParser, settings: type[Any]) -> None:
    """Add the options that the fields of `settings` declare."""
    kinds, groups = get_type_hints(settings), dict[str, Any]()
    for each in fields(settings):
        if METADATA in each.metadata:
            more = dict(each.metadata[METADATA])
            title, either = more.pop("group", ""), more.pop("either", "")
            if title:
                group = groups.get(title) or parser.add_argument_group(title)
            elif either:
                required = more.pop("required", False)
                group = groups.get(either) or parser.add_mutually_exclusive_group(required=required)
            else:
                group = parser
            groups[title or either] = group
            _add_field(group, each, kinds[each.name], **more)


def _add_field(
    group: Any, each: Field[Any], annotation: Any, words: str, metavar: str | None, **more: Any
) -> None:
    flags = [more.pop("flag", "--" + each.name.replace("_", "-"))]
    if "short" in more:
        flags.insert(0, more.pop("short"))
    default = None if each.default is REQUIRED else each.default
    kind = next(iter(get_args(annotation)), annotation) if get_origin(annotation) is UnionType else annotation
    if get_origin(kind) is tuple:
        kind, default = get_args(kind)[0], None if default is None else list(default)
        more = more if "nargs" in more else {"action": "append", **more}
    if kind is bool:
        more = {"action": "store_true", **more}
    elif more.get("action") != "store_const":
        more = {"type": kind, "metavar": metavar, **more}
    if default is not False and default not in (None, "", []) and "default" not in words:
        words += f" (default: {' '.join(map(str, default)) if isinstance(default, list) else default})"
    if flags[0]:
        more |= {"dest": each.name} | ({"required": True} if each.default is REQUIRED else {})
    else:
        flags = [each.name]
    group.add_argument(*flags, default=default, help=words, **more)


def read_fields(options: argparse.Namespace, settings: type[Settings]) -> Settings:
    """Make the settings of a command from its parsed options."""
    values = {
        each.name: getattr(options, each.name)
        for each in fields(settings)  # type: ignore[arg-type]  # a dataclass
        if METADATA in each.metadata
    }
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return settings(**{**values, **lists})


# Sampling --------------------------------------------------------------------------------------------------

SAMPLING = "sampling"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Declares the sampling options; the defaults are greedy decoding."""

    max_tokens: int = option(128, "most tokens of the text", "N", group=SAMPLING)
    temperature: float = option(0.0, "sampling temperature; 0 is greedy", "T", group=SAMPLING)
    top_k: int = option(0, "number of likeliest tokens to sample from; 0: all", "K", group=SAMPLING)
    top_p: float = option(1.0, "total probability of the tokens to sample from", "P", group=SAMPLING)
    min_p: float = option(0.0, "least probability, as a share of the likeliest's", "P", group=SAMPLING)
    repetition_penalty: float = option(1.0, "factor against repeated tokens; 1: none", "R", group=SAMPLING)
    presence_penalty: float = option(0.0, "penalty for each token already in the text", "R", group=SAMPLING)
    frequency_penalty: float = option(0.0, "penalty for each occurrence in the text", "R", group=SAMPLING)
    seed: int = option(0, "random seed; the same seed gives the same text", "N", group=SAMPLING)
    ignore_eos: bool = option(False, "continue after the target's end tokens", group=SAMPLING)

    @property
    def sampling(self) -> SamplingParams:
        """Return the sampling parameters. Raise `UserError` for a value out of range."""
        names = (each.name for each in fields(SamplingOptions))
        return SamplingParams(**{name: getattr(self, name) for name in names})


# Shared options --------------------------------------------------------------------------------------------


def number_or_auto(value: str) -> int | None:
    """Convert an option's whole number, or `auto`, which is None."""
    return None if value == "auto" else int(value)


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """Declares how a draft model runs here, as the daemon's section `draft` does."""

    threads: int = option(0, "threads of the draft model; 0: all but one", "N")
    gpu_layers: int | None = option(
        None,
        "layers of the draft model on an accelerator; auto: all, if llama.cpp was built for one; -1: all "
        "(default: auto)",
        "N",
        type=number_or_auto,
    )
    context: int | None = option(
        None,
        "KV memory of the draft model, in tokens over all texts together; auto: the longest text of draft "
        "and target, in at most a quarter of the free memory (default: auto)",
        "N",
        type=number_or_auto,
    )

    def llama(self, path: str) -> LlamaSettings:
        """Return the settings for the model at `path`. Raise `UserError`."""
        from common.llama.library import offloaded_layers
        from common.llama.model import LlamaSettings

        if self.context is not None and self.context < 1:
            raise UserError(f"--context is {self.context}; it must be auto or a whole number from 1")
        return LlamaSettings(
            path=path,
            n_ctx=self.context or 0,  # chosen when the model is loaded
            threads=self.threads,
            gpu_layers=offloaded_layers(self.gpu_layers),
        )


@dataclass(frozen=True, kw_only=True)
class WorkersOption:
    """Declares how many processes the simulator uses."""

    workers: int = option(0, "number of processes; 0: one per processor", "N")


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Declares output for programs."""

    json: bool = option(False, "print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class PlaceOption:
    """Declares which daemon a command addresses."""

    system: bool = option(False, "use the daemon of the whole machine, not this user's")

    @property
    def paths(self) -> EdgePaths:
        """Return the files of the chosen daemon."""
        return places(self)


@dataclass(frozen=True, kw_only=True)
class DaemonOptions(PlaceOption, JsonOption):
    """Declares the options that commands about the daemon share."""


@dataclass(frozen=True, kw_only=True)
class ConfigOption(PlaceOption):
    """Declares which configuration of the daemon is read."""

    config: Path | None = option(None, "the only file read (see `forerun edge config path`)", "FILE")


def places(options: Any) -> EdgePaths:
    """Return the files of the daemon that the parsed options choose."""
    return SYSTEM if getattr(options, "system", False) else find_paths(os.environ)


def ms(value: str) -> float:
    """Convert an option's milliseconds to seconds."""
    return float(value) / 1000.0


def read_prompt(prompt: str | None, file: str | None = None) -> str:
    """Return the prompt, or the text of the file or of standard input. Raise `UserError`."""
    try:
        if prompt is None:
            prompt = sys.stdin.read() if file is None else Path(file).read_text(encoding="utf-8")
        prompt.encode("utf-8")  # Python lets other bytes of arguments and standard input in, as surrogates
    except OSError as error:
        raise UserError(f"the prompt cannot be read: {error}") from error
    except UnicodeError as error:
        raise UserError("the prompt is not UTF-8 text; convert it first, for example with iconv") from error
    return prompt


def split_address(option: str, address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port. Raise `UserError` that names the option."""
    place = host_and_port(address)
    if place is None:
        raise UserError(f"{option} is {address!r}; it must be HOST:PORT, for example 127.0.0.1:50051")
    return place[0].strip("[]"), place[1]


def check_free(option: str, address: str) -> None:
    """Raise `UserError` unless a server can listen at the option's address now."""
    host, port = split_address(option, address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except OSError as error:
        words = (
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another {option} HOST:PORT"
        )
        raise UserError(words) from error


def check_out(out: Path) -> None:
    """Raise `UserError` unless a file of this path can be made."""
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"--out is {out}; a file in an existing folder was expected")


def write_out(what: str, path: Path, text: str) -> None:
    """Write a whole file or nothing. Messages call it `what`. Raise `UserError` or `CapacityError`."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise write_error(f"{what} cannot be written to {path}", error) from error


def open_draft(settings: LlamaSettings) -> LlamaRuntime:
    """Load the draft model. A child process tries the file first, because llama.cpp may crash on it.

    Raise `UserError` for a file that cannot be loaded.
    """
    from common.llama.load_trial import ModelTrials
    from common.llama.runtime import LlamaRuntime

    ModelTrials(find_paths(os.environ).tried).ensure(settings, weights=True)
    return LlamaRuntime(settings)


# The daemon's configuration --------------------------------------------------------------------------------


def files_read(config: Path | None, paths: EdgePaths) -> list[Path]:
    """Return the --config file, or the usual files that exist."""
    return [path for path in paths.config_files if path.is_file()] if config is None else [config]


def given_flags(options: argparse.Namespace) -> str:
    """Return the given settings and configuration file as JSON, with absolute paths for another process."""
    flags = dict(flags_from(options, SCHEMA))
    for name, value in flags.items():
        if SCHEMA.by_name[name].setting.is_path and isinstance(value, str) and Path(value).exists():
            flags[name] = str(Path(value).absolute())
    config: Path | None = options.config
    return json.dumps({"flags": flags, "config": None if config is None else str(config.absolute())})


def as_the_daemon(options: argparse.Namespace, paths: EdgePaths) -> Loaded[EdgeConfig]:
    """Return the configuration of the options; without options, that of a running daemon."""
    if not flags_from(options, SCHEMA) and options.config is None:
        record = daemon_file.read(paths.daemon)
        if record is not None and record.flags:
            told = json.loads(record.flags)
            file = None if told["config"] is None else Path(told["config"])
            return load_config(told["flags"], os.environ, files_read(file, paths))
    return loaded(options, paths)


def loaded(options: argparse.Namespace, paths: EdgePaths) -> Loaded[EdgeConfig]:
    """Load the configuration from files, environment and flags. Raise `UserError`."""
    return load_config(flags_from(options, SCHEMA), os.environ, files_read(options.config, paths))
