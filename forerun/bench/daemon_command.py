"""`forerun bench daemon`: what many clients of a running daemon get, with speculation and without."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from edge_client.local_client import connect
from forerun.bench.daemon import DRAFTED, DaemonPlan, measure, report
from forerun.bench.reporting import SCHEMA, Machine, add_report, check_out, finish, settings_of
from forerun.edge_places import add_place, places
from forerun.progress import ProgressBar

DESCRIPTION = """\
Asks the running daemon for texts, N clients at once, each text with speculation and without, by turns. Tells
the pace and the time to the first token as clients see them, what the local API adds to each token, and how
evenly the clients were served (Jain's index; 1 is fair).

  forerun bench daemon --clients 4 --texts 3 --tokens 64"""

ROWS = (
    ("ms per token", "ms_per_token"),
    ("  p50 of 16 tokens", "ms_per_token_p50"),
    ("  p95", "ms_per_token_p95"),
    ("first token ms, p50", "ttft_ms_p50"),
    ("  p95", "ttft_ms_p95"),
    ("tokens/s, all clients", "tokens_per_second"),
    ("drafts accepted", "acceptance"),
    ("of the text drafted", "drafted_share"),
    ("tokens per target step", "acceptance_length"),
    ("API us per token", "api_overhead_us_per_token"),
    ("Jain's index", "jain"),
    ("texts", "texts"),
    ("failed", "failed"),
)


def add_parser(actions: Any) -> None:
    parser = actions.add_parser(
        "daemon",
        help="what clients of the running daemon get, with speculation and without",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option, default = parser.add_argument, DaemonPlan()
    option("--clients", type=int, default=default.clients, metavar="N", help="at once (%(default)s)")
    option(
        "--texts",
        type=int,
        default=default.texts,
        metavar="M",
        help="of each client, with and without speculation (%(default)s)",
    )
    option("--tokens", type=int, default=default.tokens, metavar="N", help="of each text (%(default)s)")
    option("--temperature", type=float, default=default.temperature, metavar="T", help="(%(default)s)")
    option("--seed", type=int, default=default.seed, metavar="N", help="of the first text (%(default)s)")
    option("--prompt", default="", metavar="TEXT", help="for all texts (some subjects)")
    option("--text", action="store_true", help="go on from the prompt; no chat, for targets without one")
    add_place(parser)
    add_report(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit code 1 if a text failed, or is another one with speculation than without."""
    plan = DaemonPlan(
        clients=options.clients,
        texts=options.texts,
        tokens=options.tokens,
        temperature=options.temperature,
        seed=options.seed,
        prompt=options.prompt,
        chat=not options.text,
    )
    check_out(options)
    client = connect(places(options).daemon)
    status, machine = client.get("/v1/status"), Machine()
    with ProgressBar(sys.stderr) as bar:

        def progress(done: int, total: int, text: str) -> None:
            bar.show(done, total, text)
            bar.note(text)

        samples, seconds = measure(client, plan, progress)
    found = {
        "schema": SCHEMA,
        "benchmark": "daemon",
        "settings": settings_of(options),
        "machine": machine.told(),
        "daemon": status,
        **report(samples, seconds),
    }
    finish(options, found, table(found))
    failed = sum(kind["failed"] for kind in found["kinds"].values())
    return 1 if failed or found["texts_different"] else 0


def table(found: dict[str, Any]) -> list[str]:
    """For people: a line a figure, a column a kind."""
    kinds, settings = found["kinds"], found["settings"]
    lines = [
        f"{settings['clients']} clients, {settings['texts']} texts of {settings['tokens']} tokens each",
        f"{'':24}" + "".join(f"{kind:>14}" for kind in kinds),
    ]
    for title, key in ROWS:
        lines.append(f"{title:24}" + "".join(f"{_shown(kind[key]):>14}" for kind in kinds.values()))
    gain = "-" if found["speedup"] is None else f"{found['speedup']:.2f}"
    lines.append(f"{DRAFTED}: {gain} times the pace of streaming; {_differences(found)}")
    lines += [f"error: {error}" for kind in kinds.values() for error in kind["errors"]]
    return lines


def _differences(found: dict[str, Any]) -> str:
    compared, different = found["texts_compared"], found["texts_different"]
    return f"{different} of {compared} texts differ" if different else f"all {compared} texts are the same"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
