"""Options of `forerun chat` and `complete`, and the body of their requests to the daemon."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Any

from common.config.setting import setting
from common.sampling import DRAWN_SEED_BITS
from edge_client.process.client import LocalClient, connect
from forerun.options import places

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """Declares the options of answers. None means the daemon's default."""

    model: str = setting("", "one of the daemon's models (default: its first)", "NAME")
    system_text: str = setting("", "system message for the model", "TEXT", flag="--system")
    temperature: float | None = setting(
        None, "sampling temperature; 0 is greedy (default: the target's own, else 1)", "T"
    )
    seed: int | None = setting(None, "seed of the sampling (default: a new one for each answer)", "N")
    max_tokens: int | None = setting(None, "most tokens (default: as many as fit)", "N", low=1)
    no_speculation: bool = setting(False, "write by the target alone, without drafts")
    show_origin: bool = setting(False, "mark the text by its writer")
    system: bool = setting(
        False, "use the daemon of the whole machine, not this user's", flag="--system-daemon"
    )

    def daemon(self) -> LocalClient:
        """Find the running daemon, which a restart may move. Raises `UnavailableError` without one."""
        return connect(places(self).daemon)

    def conversation(self, *messages: Json) -> Json:
        """Return the messages behind the system's in the API's form."""
        system = [{"role": "system", "content": self.system_text}] if self.system_text else []
        return {"messages": [*system, *messages]}

    def body(self, what: Json) -> Json:
        """Return a request for `what`. It always has a seed, so that a repeated one yields the same text."""
        seed = secrets.randbits(DRAWN_SEED_BITS) if self.seed is None else self.seed
        chosen = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {
            **what,
            **{name: value for name, value in chosen.items() if value is not None},
            "model": self.model,
            "seed": seed,
            "stream": True,
            "user": f"forerun-{os.getpid()}",
            "forerun": {"origins": True, "speculate": not self.no_speculation},
        }
