"""Declares the options that commands share, and what they have in common with files and addresses."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.command_line import flags_from
from common.config.merge import Loaded
from common.config.setting import setting
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.process import run_file as daemon_file
from edge_client.process.paths import SYSTEM, EdgePaths, find_paths
from edge_client.settings import SCHEMA, EdgeConfig, load_config
from simulator.documents import write_error, write_whole

if TYPE_CHECKING:
    from common.llama.model import LlamaSettings
    from common.llama.runtime import LlamaRuntime

# Sampling --------------------------------------------------------------------------------------------------

SAMPLING = "sampling"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Declares the sampling options; the defaults are greedy decoding."""

    max_tokens: int = setting(128, "most tokens of the text", "N", group=SAMPLING)
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy", "T", group=SAMPLING)
    top_k: int = setting(0, "number of likeliest tokens to sample from; 0: all", "K", group=SAMPLING)
    top_p: float = setting(1.0, "total probability of the tokens to sample from", "P", group=SAMPLING)
    min_p: float = setting(0.0, "least probability, as a share of the likeliest's", "P", group=SAMPLING)
    repetition_penalty: float = setting(1.0, "factor against repeated tokens; 1: none", "R", group=SAMPLING)
    presence_penalty: float = setting(0.0, "penalty for each token already in the text", "R", group=SAMPLING)
    frequency_penalty: float = setting(0.0, "penalty for each occurrence in the text", "R", group=SAMPLING)
    seed: int = setting(0, "random seed; the same seed gives the same text", "N", group=SAMPLING)
    ignore_eos: bool = setting(False, "continue after the target's end tokens", group=SAMPLING)

    @property
    def sampling(self) -> SamplingParams:
        """Return the sampling parameters. Raise `UserError` for a value out of range."""
        names = (each.name for each in fields(SamplingOptions))
        return SamplingParams(**{name: getattr(self, name) for name in names})


# Shared options --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WorkersOption:
    """Declares how many processes the simulator uses."""

    workers: int = setting(0, "number of processes; 0: one per processor", "N")


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Declares output for programs."""

    json: bool = setting(False, "print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class PlaceOption:
    """Declares which daemon a command addresses."""

    system: bool = setting(False, "use the daemon of the whole machine, not this user's")

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

    config: Path | None = setting(None, "the only file read (see `forerun edge config path`)", "FILE")


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
