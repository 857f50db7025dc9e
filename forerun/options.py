"""Options that several commands share, and their conversion to settings."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from common.acceptance import LOSSLESS, AcceptanceRule
from common.address import host_and_port
from common.errors import UserError
from common.sampling import SamplingParams


def _rules_in_words() -> str:
    lossless = ", ".join(rule.title for rule in LOSSLESS)
    lossy = ", ".join(rule.title for rule in AcceptanceRule if not rule.lossless)
    return f"{lossless}; lossy, so that the text is not the target's: {lossy}"


RULES_IN_WORDS = _rules_in_words()
"""The acceptance rules for a person who has to choose one."""


def add_sampling(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """How the target's tokens are chosen; the defaults are greedy decoding."""
    group = parser.add_argument_group("sampling")
    option = group.add_argument
    option("--max-tokens", type=int, default=max_tokens, metavar="N", help="tokens at most (%(default)s)")
    option("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (%(default)s)")
    option(
        "--top-k", type=int, default=0, metavar="K", help="keep the K best tokens; 0 keeps all (%(default)s)"
    )
    option("--top-p", type=float, default=1.0, metavar="P", help="keep this much probability (%(default)s)")
    option(
        "--min-p", type=float, default=0.0, metavar="P", help="drop tokens less likely than P times the best"
    )
    option(
        "--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1 discourages (%(default)s)"
    )
    option("--presence-penalty", type=float, default=0.0, metavar="R", help="(%(default)s)")
    option("--frequency-penalty", type=float, default=0.0, metavar="R", help="(%(default)s)")
    option("--seed", type=int, default=0, metavar="N", help="key of the noise: the same seed, the same text")
    option("--ignore-eos", action="store_true", help="go on after the target's end tokens")


def sampling_from(options: argparse.Namespace) -> SamplingParams:
    """The sampling parameters of parsed options. Raises `UserError` that names a value out of range."""
    return SamplingParams(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        ignore_eos=options.ignore_eos,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )


def add_core(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--core",
        type=int,
        metavar="N",
        help="run on this processor core only (Linux); to measure two programs side by side on one machine",
    )


def pin_to_core(core: int | None) -> None:
    """Keep this process on one core. Raises `UserError` if there is no such core or no such system call."""
    if core is None:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("--core needs Linux; leave it out on this system")
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        cores = sorted(os.sched_getaffinity(0))
        raise UserError(f"--core {core} is not available; this process may use {cores}") from error


def read_prompt(options: argparse.Namespace) -> str:
    """The text of --prompt, of --prompt-file, or of standard input."""
    try:
        if options.prompt is not None:
            return _utf8(str(options.prompt))
        if options.prompt_file is None:
            return _utf8(sys.stdin.read())
        return Path(options.prompt_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the prompt cannot be read: {error}") from error


def _utf8(text: str) -> str:
    """Python lets undecodable bytes of arguments and standard input through as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError("the prompt is not UTF-8 text; convert it first, for example with iconv") from error
    return text


def split_address(option: str, address: str) -> tuple[str, int]:
    """Host and port. Raises `UserError` that names the option."""
    found = host_and_port(address)
    if found is None:
        raise UserError(f"{option} is {address!r}; it must be HOST:PORT, for example 127.0.0.1:50051")
    return found


def check_free(option: str, address: str) -> None:
    """Raise `UserError` unless it is one and can be listened on now; who then does may find it taken
    meanwhile."""
    host, port = split_address(option, address)
    host = host.strip("[]")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another {option} HOST:PORT"
        ) from error


def ms(value: str) -> float:
    """A time given in milliseconds, as seconds."""
    return float(value) / 1000.0


def add_workers(parser: argparse.ArgumentParser) -> None:
    """How many processors the simulator uses."""
    parser.add_argument(
        "--workers", type=int, default=0, metavar="N", help="processes; 0 = one per processor (%(default)s)"
    )
