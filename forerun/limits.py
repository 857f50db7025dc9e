"""The limits of `forerun verify` as options: one for each field of `SchedulerConfig` that an operator may
set."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import NamedTuple

from cloud_verifier.core.config import SchedulerConfig


class Limit(NamedTuple):
    """An option that sets a field. Its default is the field's."""

    flag: str
    metavar: str
    help: str


LIMITS = {
    "max_sessions": Limit("--max-sessions", "N", "sessions open at once"),
    "max_tenant_share": Limit(
        "--max-tenant-share", "SHARE", "share of all sessions and KV slots that one tenant may hold"
    ),
    "max_rows": Limit("--max-rows", "N", "nodes in one step, all sessions"),
    "max_context": Limit("--max-context", "N", "KV slots of the sessions that write in one step"),
    "max_nodes_per_session": Limit("--max-nodes", "N", "nodes a session may have in one step"),
    "prefill_chunk": Limit("--prefill-chunk", "N", "prompt tokens in one step"),
    "max_prefill_slowdown": Limit(
        "--max-prefill-slowdown",
        "TIMES",
        "factor by which prompts may lengthen a step that other sessions wait for",
    ),
    "max_live_nodes": Limit("--max-live-nodes", "N", "proposed nodes a session may have waiting here"),
    "max_slowdown": Limit(
        "--max-slowdown", "SHARE", "share of a session's token rate that drafts of other sessions may take"
    ),
    "promised_text": Limit(
        "--promised-text", "N", "tokens of a session's text whose slots are reserved when it is admitted"
    ),
    "open_timeout": Limit("--open-timeout", "S", "seconds a stream may stand without its first message"),
    "idle_timeout": Limit("--idle-timeout", "S", "seconds a session without fill may wait for a proposal"),
    "stall_timeout": Limit(
        "--stall-timeout", "S", "seconds a session is kept whose edge does not read what it is sent"
    ),
    "shared_ngrams": Limit(
        "--shared-ngrams",
        "N",
        "entries of an n-gram table per tenant from which --recall guesses too; the pace of guesses tells a "
        "tenant's users of each other's texts",
    ),
}
SWITCHES = {
    "prefix_cache": Limit(
        "--prefix-cache", "", "KV of ended sessions kept for sessions of the same tenant that begin alike"
    ),
    "recall": Limit("--recall", "", "guesses copied from earlier in the same text"),
}
RECALL_BY_DEFAULT = True
"""The one default that is not the field's: guessing is the product's way, and not what a simulation begins
with."""


def add_limits(parser: argparse.ArgumentParser) -> None:
    """One option for each limit and switch."""
    defaults = {field.name: field.default for field in fields(SchedulerConfig)}
    defaults["recall"] = RECALL_BY_DEFAULT
    group = parser.add_argument_group("limits")
    for name, limit in LIMITS.items():
        default = defaults[name]
        words = f"{limit.help} (%(default)s)"
        group.add_argument(
            limit.flag, dest=name, type=type(default), default=default, metavar=limit.metavar, help=words
        )
    for name, switch in SWITCHES.items():
        group.add_argument(
            switch.flag,
            dest=name,
            action=argparse.BooleanOptionalAction,
            default=defaults[name],
            help=f"{switch.help} (%(default)s)",
        )


def config_from(options: argparse.Namespace) -> SchedulerConfig:
    """The limits of parsed options. Raises `UserError` that names one that cannot be."""
    return SchedulerConfig(**{name: getattr(options, name) for name in (*LIMITS, *SWITCHES)})
