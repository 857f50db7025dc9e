"""Every known attack: what it meets, who plays it, and what must hold beside what holds for all.

For all of them: the processes live and keep to 2 GiB with their children. An honest text beside the attack is
the same as without it, and the 95th percentile of its gaps stays below three times the undisturbed one. When
told to go, the processes are gone within their grace. Attacks over MQTT are played by
tests/edge_client/fleet/test_fleet_task.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attacks import on_daemon, on_files, on_verifier
from tests.attacks.honest import Honest
from tests.attacks.stages import DaemonStage, NoStage, Stage, VerifierStage

Play = Callable[[Any, asyncio.Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One row. `beside`: whether an honest text is written meanwhile. `paced`: whether its pace must hold; it
    need not where the load is honest, too, and all share alike."""

    name: str
    against: str  # a key of `STAGES`
    play: Play
    holds: str
    beside: bool = True
    paced: bool = True
    skipped: str = ""  # why it is not played


PLAIN, TOKENS = "verifier", "verifier, tokens"
DAEMON, DAEMON_FILES = "daemon", "daemon, 1,024 files"
LIED_TO, NOTHING = "daemon, lies", "files"

Make = Callable[[Path, Honest, VerifierStage], Stage]
"""Makes a stage in a folder; the verifier given is for daemons."""

DRAFTS = ("--policy", "adaptive")

STAGES: dict[str, Make] = {
    PLAIN: lambda folder, honest, _: VerifierStage(folder, honest),
    TOKENS: lambda folder, honest, _: VerifierStage(folder, honest, has_tokens=True),
    DAEMON: lambda folder, honest, behind: DaemonStage(folder, honest, behind, *DRAFTS),
    DAEMON_FILES: lambda folder, honest, behind: DaemonStage(folder, honest, behind, files=1024),
    LIED_TO: lambda folder, honest, behind: DaemonStage(
        folder, honest, behind, "--privacy", "off", "--fallback", "fail", lies=True
    ),
    NOTHING: lambda folder, honest, _: NoStage(folder, honest),
}

VERIFIER_ATTACKS = (
    Attack("slow grammars", PLAIN, on_verifier.slow_grammars, "honest grammars are taken"),
    Attack("compressed padding", TOKENS, on_verifier.compressed_padding, "8 KB stay 8 KB"),
    Attack("forged tokens", TOKENS, on_verifier.forged_tokens, "nobody comes in"),
)

DAEMON_ATTACKS = (
    Attack("burst of streams", DAEMON, on_daemon.burst, "refused with 429 and advice, never within 200"),
    Attack("control words", DAEMON, on_daemon.control_words, "contents of messages are text"),
    Attack("slow heads", DAEMON_FILES, on_daemon.slow_heads, "/healthz answers, half requests are cut"),
    Attack("hostile templates", LIED_TO, on_daemon.hostile_templates, "/healthz answers", beside=False),
    Attack("false ends", LIED_TO, on_daemon.false_ends, "told as the verifier's fault", beside=False),
    Attack("tokens that are none", LIED_TO, on_daemon.tokens_that_are_none, "502", beside=False),
)

FILE_ATTACKS = (
    Attack("damaged target", NOTHING, on_files.damaged_target, "refused in a sentence", beside=False),
)

ATTACKS = (*VERIFIER_ATTACKS, *DAEMON_ATTACKS, *FILE_ATTACKS)
