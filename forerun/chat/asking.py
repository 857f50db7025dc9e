"""What is asked of the daemon: the options of `forerun chat` and `complete`, and the request's body."""

from __future__ import annotations

import argparse
import os
import secrets
from dataclasses import dataclass
from typing import Any

from common.errors import UserError
from common.sampling import DRAWN_SEED_BITS
from edge_client.local_client import LocalClient, connect
from forerun.edge_places import places

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asking:
    """How answers are to be written. None: as the daemon has it."""

    model: str = ""
    temperature: float | None = None
    seed: int | None = None  # None: another one for each answer
    max_tokens: int | None = None
    speculate: bool = True
    revise: bool = False  # tell guesses that may be taken back
    client: str = ""  # the name under which it waits in the daemon's queue

    def body(self, what: Json) -> Json:
        """The request. It always has a seed, so that the very same text can be asked for again."""
        chosen = {
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": secrets.randbits(DRAWN_SEED_BITS) if self.seed is None else self.seed,
            "user": self.client or None,
        }
        ours = {"origins": True, "revise": self.revise, "speculate": self.speculate}
        given = {name: value for name, value in chosen.items() if value is not None}
        return {**what, **given, "stream": True, "forerun": ours}


def add_asking(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    """The options; `max_tokens` is the default."""
    option = parser.add_argument
    shown = "as many as fit" if max_tokens is None else "%(default)s"
    option("--model", default="", metavar="NAME", help="which of the daemon's models (the first it names)")
    option("--system", default="", metavar="TEXT", dest="system_text", help="tell the model who it is")
    option(
        "--temperature",
        type=float,
        metavar="T",
        help="sampling temperature; 0 is greedy (default: the target's own, else 1)",
    )
    option("--seed", type=int, metavar="N", help="the same seed, the same text (each answer another)")
    option("--max-tokens", type=int, default=max_tokens, metavar="N", help=f"tokens at most ({shown})")
    option("--no-speculation", action="store_true", help="let the target write alone")
    option("--show-origin", action="store_true", help="tell apart who wrote what")


def add_daemon(parser: argparse.ArgumentParser) -> None:
    """Whose daemon is asked. `--system` is the model's text here, so the flag has another name."""
    parser.add_argument(
        "--system-daemon",
        action="store_true",
        dest="system",
        help="ask the daemon of the whole machine, not this user's",
    )


def asking_from(options: argparse.Namespace, *, revise: bool, name: str) -> Asking:
    """Of parsed options. Raises `UserError` for what no daemon could take."""
    if options.max_tokens is not None and options.max_tokens < 1:
        raise UserError(f"--max-tokens is {options.max_tokens}; it must be 1 or more")
    return Asking(
        model=options.model,
        temperature=options.temperature,
        seed=options.seed,
        max_tokens=options.max_tokens,
        speculate=not options.no_speculation,
        revise=revise,
        client=f"{name}-{os.getpid()}",
    )


def find_daemon(options: argparse.Namespace) -> LocalClient:
    """The one that runs now: after a restart it may be elsewhere. Raises `UnavailableError` if none runs."""
    return connect(places(options).daemon)
