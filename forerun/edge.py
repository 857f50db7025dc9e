"""`forerun edge`: the device side. `complete` writes one completion; `pipe` serves JSON requests on stdin."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.acceptance import make_acceptance
from common.errors import ForerunError, PeerError, UserError
from common.privacy import privacy_named
from common.sampling import SamplingParams
from edge_client.core.pace import DraftPace
from edge_client.core.policies import make_policy
from edge_client.paths import find_paths
from edge_client.prior_file import read_priors
from forerun import config_command, daemon_command, logs_command, process_command, service_command
from forerun.edge_places import models_folder, try_draft
from forerun.edge_tls import add_edge_tls, edge_tls
from forerun.options import RULES_IN_WORDS, add_core, add_sampling, pin_to_core, read_prompt, sampling_from
from forerun.paint import Painter, note
from forerun.privacy_options import add_edge_privacy
from forerun.showing import Events, Listener, Teller, event, on_standard_output

if TYPE_CHECKING:
    from edge_client.alone import DeviceGeneration
    from edge_client.edge import Edge
    from edge_client.generation import Generation

COMPLETE = """\
Writes one completion without the daemon: drafts on this device, lets the verifier decide, and shows the text
as it is committed.

  forerun edge complete --verifier 127.0.0.1:50051 --draft demo_models/draft/draft-q8_0.gguf \\
      --prompt 'def parse_header(line):' --max-tokens 80"""

PIPE = """\
Serves requests one after the other, without the daemon: one JSON object a line on standard input, JSON events
on standard output.

  request: {"prompt": "text", "policy": "adaptive", "recall": true, "acceptance": "coupled",
            "sampling": {"max_tokens": 64, "temperature": 0.8, "seed": 1}}
  events:  {"event": "ready"}, then for each request {"event": "text", "text": ..., "drafted": true}, ... and
           {"event": "done", "tokens": [...], "arrivals_ms": [...], ...}, or {"event": "error", ...}

  When no server is there for a second (and --offline is not wait) the draft's own guess comes:
           {"event": "mode", "mode": "device-only", "why": ...},
           {"event": "preview", "start": 12, "pieces": ["a", "b"]}, the pieces of tokens 12 and 13;
           {"event": "withdraw", "start": 13}: the guess from token 13 on is void.
  A text event takes the place of the guess's first piece. "error" carries the text and the guess so far.

The policy "device" leaves the verifier out: the draft model's own text, which need not be the target's."""

DAEMON_ACTIONS = (process_command, logs_command, config_command, service_command)
"""Modules that add actions for the daemon."""

DEVICE = "device"
"""Asked for as a policy, it is none: nothing is sent anywhere."""


DRAWN_AHEAD = (
    "drafts drawn for this acceptance rule count only if they come in time, and most that are sent ahead do "
    "not. Give --policy sync:K to wait for them, or leave the rule at coupled (docs/acceptance.md)"
)
"""Said to whoever asks for a rule that draws with a policy that runs ahead."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "edge",
        help="the daemon on this device: drafts for verifiers, with an API for this machine's programs",
        description=daemon_command.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    daemon_command.add_options(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    complete = _add_action(actions, "complete", "write one completion", COMPLETE)
    prompt = complete.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt; else --prompt-file or standard input")
    prompt.add_argument("--prompt-file", metavar="FILE", help="a UTF-8 file with the prompt")
    complete.add_argument(
        "--policy", default="adaptive", help="adaptive, tree, chain, sync:K or off (%(default)s)"
    )
    complete.add_argument(
        "--acceptance",
        default="coupled",
        metavar="RULE",
        help=f"how the verifier decides: {RULES_IN_WORDS} (%(default)s; docs/acceptance.md)",
    )
    complete.add_argument("--json", action="store_true", help="one JSON object at the end instead of text")
    add_sampling(complete, max_tokens=128)
    complete.set_defaults(run=lambda options: asyncio.run(_complete(options)))
    pipe = _add_action(actions, "pipe", "serve JSON requests on standard input", PIPE)
    pipe.set_defaults(run=lambda options: asyncio.run(_pipe(options)))
    for module in DAEMON_ACTIONS:
        module.add_actions(actions)


def _add_action(actions: Any, name: str, help_text: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=help_text, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--verifier", required=True, metavar="HOST:PORT", help="where `forerun verify` listens")
    add_edge_tls(parser)
    add_edge_privacy(parser)
    option(
        "--draft", required=True, metavar="PATH", help="GGUF file, or hf://organisation/repository/file.gguf"
    )
    option(
        "--recall",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="proposals copied from earlier in the same text (%(default)s)",
    )
    option(
        "--ngrams",
        type=int,
        default=65536,
        metavar="N",
        help="entries of the n-gram table that --recall builds over all texts of this program; 0: no table "
        "(%(default)s)",
    )
    option(
        "--drafting",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the draft model; without it --recall alone proposes, and of the file only the tokens are "
        "loaded (%(default)s)",
    )
    option("--threads", type=int, default=0, metavar="N", help="threads of the draft model (0: all but one)")
    option("--gpu-layers", type=int, default=0, metavar="N", help="draft layers on an accelerator; -1: all")
    option("--context", type=int, default=4096, metavar="N", help="draft KV memory in tokens (%(default)s)")
    option(
        "--offline",
        choices=("preview", "wait"),
        default="preview",
        help="while no server is there: show the draft's own guess until it is back, or wait (%(default)s)",
    )
    option(
        "--prior", type=Path, metavar="FILE", help="of `forerun fit`: how far the draft is trusted at first"
    )
    add_core(parser)
    return parser


# complete ---------------------------------------------------------------------------------------------------


async def _complete(options: argparse.Namespace) -> int:
    sampling, policy = sampling_from(options), make_policy(options.policy)
    acceptance = make_acceptance(options.acceptance)
    prompt = read_prompt(options)
    if acceptance.draws(sampling.greedy) and policy.fill and policy.name != "off":
        note(DRAWN_AHEAD)
    painter = Painter(sys.stdout)
    async with _open_edge(options) as edge:
        from edge_client.edge import Request

        if edge.greeting:
            note(edge.greeting)
        generation = edge.generation(
            Request(edge.tokenize(prompt), sampling, policy, options.recall, options.drafting, acceptance)
        )
        if not options.json:
            print(painter.dim(painter.legend + painter.guess_legend), file=sys.stderr)
        listener = None if options.json else on_standard_output(painter)
        record, error = await run_generation(edge, generation, listener)
    if options.json:
        print(json.dumps(record))
    elif error is None or record["tokens"] or record["preview"]["tokens"]:
        print(f"\n{painter.dim(_summary(record))}")
    if error is not None:
        raise error
    return 0


def _summary(record: dict[str, Any]) -> str:
    stats, count = record["stats"], len(record["tokens"])
    steps = max(1, stats["target_steps"])
    return (
        f"[{count} tokens in {record['arrivals_ms'][-1] if count else 0:.0f} ms; {stats['accepted']} drafted "
        f"here, {count - stats['accepted']} by the server; {count / steps:.2f} tokens per target step; "
        f"{record['ended']}{_modes(record)}{_guess(record)}]"
    )


def _modes(record: dict[str, Any]) -> str:
    """Each change of who writes, in words; nothing if there was none."""
    return "".join(f"; {change['mode']}: {change['why']}" for change in record["modes"])


def _guess(record: dict[str, Any]) -> str:
    """What of the end of the screen is no text."""
    count = len(record["preview"]["tokens"])
    return f"; {count} more are the draft's own guess, which no server has confirmed" if count else ""


# pipe -------------------------------------------------------------------------------------------------------


async def _pipe(options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read_lines() -> None:
        """In a thread that does not keep the process alive: a blocked read cannot be cancelled."""
        for line in iter(sys.stdin.readline, ""):
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    async with _open_edge(options) as edge:
        greeting = {"note": edge.greeting} if edge.greeting else {}
        event("ready", model_positions=edge.max_positions, **greeting)
        threading.Thread(target=read_lines, name="stdin", daemon=True).start()
        while line := await lines.get():
            try:
                await _serve_line(edge, line, options)
            except ForerunError as error:
                event("error", message=str(error), code=error.code.value)
    return 0


async def _serve_line(edge: Edge, line: str, options: argparse.Namespace) -> None:
    from edge_client.edge import Request

    try:
        asked = json.loads(line)
        sampling = SamplingParams(**asked.get("sampling", {}))
        prompt = edge.tokenize(asked["prompt"])
        name = asked.get("policy", "adaptive")
        policy = None if name == DEVICE else make_policy(name)
        acceptance = make_acceptance(asked.get("acceptance", "coupled"))
        recall, drafting = (bool(asked.get(key, getattr(options, key))) for key in ("recall", "drafting"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"this request is not understood ({error}): {line.strip()[:200]}") from error
    if policy is None:
        event("done", **await run_alone(edge, edge.alone(prompt, sampling), Events()))
        return
    generation = edge.generation(Request(prompt, sampling, policy, recall, drafting, acceptance))
    record, failure = await run_generation(edge, generation, Events())
    if failure is None:
        event("done", **record)
    else:
        told = {key: record[key] for key in ("tokens", "text", "preview")}
        event("error", message=str(failure), code=failure.code.value, **told)


# both -------------------------------------------------------------------------------------------------------


async def run_generation(
    edge: Edge, generation: Generation, listener: Listener | None
) -> tuple[dict[str, Any], ForerunError | None]:
    """Run a generation to its end: the record of all that happened, and the error that ended it, if one did.

    `listener` gets each piece. `arrivals_ms` are the tokens' times of arrival in milliseconds since the
    request; `preview` is what of the draft's own guess still stood at the end: only if no server came back.
    """
    from edge_client.edge import TextDecoder, reason_in_words

    teller = Teller(TextDecoder(edge.model), listener)
    error: ForerunError | None = None
    try:
        async for shown in generation.shown():
            teller.take(shown)
    except ForerunError as caught:
        error = caught
    if error is None:
        teller.finish()
    session = generation.session
    if session.text != tuple(teller.tokens) or session.preview != tuple(teller.guess):
        raise PeerError("the text shown is not the session's; please report this") from error
    decoder = TextDecoder(edge.model)
    record = {
        "tokens": teller.tokens,
        "text": decoder.feed(teller.tokens),
        "preview": {"tokens": teller.guess, "text": decoder.feed(teller.guess)},
        "arrivals_ms": teller.arrivals,
        "ended": reason_in_words(generation.reason),
        "modes": [{"mode": each.mode.value, "why": each.why} for each in generation.modes],
        "stats": asdict(session.stats),
        "bytes_up": generation.traffic.up,
        "bytes_down": generation.traffic.down,
        "smoothed_rtt_ms": (session.view.rtt.smoothed_rtt or 0.0) * 1e3,
        "draft_times": asdict(session.draft_times),
        "target_times": asdict(session.target_times),
    }
    if error is not None:
        record["error"] = str(error)
    return record, error


async def run_alone(edge: Edge, generation: DeviceGeneration, listener: Listener) -> dict[str, Any]:
    """As `run_generation`, for a text by the draft model alone; the record has what there is to say."""
    from edge_client.edge import TextDecoder, reason_in_words

    decoder = TextDecoder(edge.model)
    tokens: list[int] = []
    arrivals: list[float] = []
    began = time.monotonic()
    async for token in generation:
        arrivals.append((time.monotonic() - began) * 1e3)
        tokens.append(token)
        listener.text(decoder.feed([token]), True)
    if rest := decoder.finish():
        listener.text(rest, True)
    return {
        "tokens": tokens,
        "text": TextDecoder(edge.model).feed(tokens),
        "arrivals_ms": arrivals,
        "ended": reason_in_words(generation.reason),
        "stats": asdict(generation.stats),
    }


def _open_edge(options: argparse.Namespace) -> Edge:
    try:
        from edge_client.edge import Edge
        from edge_client.llama.model import LlamaModel
        from edge_client.llama.pace import KeptPaces
        from edge_client.llama.runtime import LlamaRuntime
        from edge_client.llama.settings import LlamaSettings
        from edge_client.verifiers.addresses import parse_address
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[edge]'") from error
    priors = None if options.prior is None else read_priors(options.prior)
    tls = edge_tls(options)
    parse_address(options.verifier, encrypted=tls is not None, insecure=options.insecure)
    pin_to_core(options.core)
    settings = LlamaSettings(
        path=options.draft,
        n_ctx=options.context,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        models=models_folder(options.draft),
    )
    try_draft(settings, weights=options.drafting)
    model = LlamaRuntime(settings) if options.drafting else LlamaModel(settings, weights=False)
    preview = options.drafting and options.offline == "preview"
    pace = DraftPace()
    if isinstance(model, LlamaRuntime):
        KeptPaces(find_paths(os.environ).pace).ensure(model).teach(pace)
    return Edge(
        model,
        options.verifier,
        preview=preview,
        ngrams=options.ngrams,
        priors=priors,
        tls=tls,
        insecure=options.insecure,
        privacy=privacy_named(options.privacy),
        pace=pace,
    )
