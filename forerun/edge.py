"""`forerun edge`: the device side. `complete` writes one completion; `pipe` serves JSON requests on stdin."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ForerunError, PeerError, UserError
from common.sampling import SamplingParams
from edge_client.core.policies import make_policy
from edge_client.prior_file import read_priors
from forerun.options import add_core, add_sampling, pin_to_core, read_prompt, sampling_from
from forerun.paint import Painter

if TYPE_CHECKING:
    from edge_client.edge import Edge
    from edge_client.generation import Generation

COMPLETE = """\
Writes one completion: drafts on this device, lets the verifier decide, shows the text as it is committed.

  forerun edge complete --verifier 127.0.0.1:50051 --draft demo_models/draft/draft-q8_0.gguf \\
      --prompt 'def parse_header(line):' --max-tokens 80"""

PIPE = """\
Serves requests one after the other: one JSON object a line on standard input, JSON events on standard output.

  request: {"prompt": "text", "policy": "adaptive",
            "sampling": {"max_tokens": 64, "temperature": 0.8, "seed": 1}}
  events:  {"event": "ready"}, then for each request {"event": "text", "text": ..., "drafted": true}, ... and
           {"event": "done", "tokens": [...], "arrivals_ms": [...], ...}, or {"event": "error", ...}"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("edge", help="draft on this device for a verifier (the edge side)")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    complete = _add_action(actions, "complete", "write one completion", COMPLETE)
    prompt = complete.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt; else --prompt-file or standard input")
    prompt.add_argument("--prompt-file", metavar="FILE", help="a UTF-8 file with the prompt")
    complete.add_argument(
        "--policy", default="adaptive", help="adaptive, tree, chain, sync:K or off (%(default)s)"
    )
    complete.add_argument("--json", action="store_true", help="one JSON object at the end instead of text")
    add_sampling(complete, max_tokens=128)
    complete.set_defaults(run=lambda options: asyncio.run(_complete(options)))
    pipe = _add_action(actions, "pipe", "serve JSON requests on standard input", PIPE)
    pipe.set_defaults(run=lambda options: asyncio.run(_pipe(options)))


def _add_action(actions: Any, name: str, help_text: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=help_text, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--verifier", required=True, metavar="HOST:PORT", help="where `forerun verify` listens")
    option(
        "--draft", required=True, metavar="PATH", help="GGUF file, or hf://organisation/repository/file.gguf"
    )
    option("--threads", type=int, default=0, metavar="N", help="of the draft model; 0 = one per core")
    option("--gpu-layers", type=int, default=0, metavar="N", help="draft layers on an accelerator; -1 = all")
    option("--context", type=int, default=4096, metavar="N", help="tokens of KV on the device (%(default)s)")
    option(
        "--prior", type=Path, metavar="FILE", help="of `forerun fit`: how far the draft is trusted at first"
    )
    add_core(parser)
    return parser


# complete ---------------------------------------------------------------------------------------------------


async def _complete(options: argparse.Namespace) -> int:
    sampling, policy = sampling_from(options), make_policy(options.policy)
    prompt = read_prompt(options)
    painter = Painter(sys.stdout)
    async with _open_edge(options) as edge:
        from edge_client.edge import Request

        generation = edge.generation(Request(edge.tokenize(prompt), sampling, policy))
        if not options.json:
            print(painter.dim(painter.legend), file=sys.stderr)
        record = await run_generation(edge, generation, None if options.json else _Show(painter))
    if options.json:
        print(json.dumps(record))
    else:
        print(f"\n{painter.dim(_summary(record))}")
    return 0


class _Show:
    """Prints text as it comes."""

    def __init__(self, painter: Painter) -> None:
        self._painter = painter

    def __call__(self, text: str, drafted: bool) -> None:
        paint = self._painter.drafted if drafted else self._painter.server_made
        print(paint(text), end="", flush=True)


def _summary(record: dict[str, Any]) -> str:
    stats, count = record["stats"], len(record["tokens"])
    steps = max(1, stats["target_steps"])
    return (
        f"[{count} tokens in {record['arrivals_ms'][-1] if count else 0:.0f} ms; {stats['accepted']} drafted "
        f"here, {count - stats['accepted']} by the server; {count / steps:.2f} tokens per target step; "
        f"{record['ended']}{_modes(record)}]"
    )


def _modes(record: dict[str, Any]) -> str:
    """Each change of who writes, in words; nothing if there was none."""
    return "".join(f"; {change['mode']}: {change['why']}" for change in record["modes"])


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
        _event("ready", model_positions=edge.max_positions)
        threading.Thread(target=read_lines, name="stdin", daemon=True).start()
        while line := await lines.get():
            try:
                await _serve_line(edge, line)
            except ForerunError as error:
                _event("error", message=str(error), code=error.code.value)
    return 0


async def _serve_line(edge: Edge, line: str) -> None:
    from edge_client.edge import Request

    try:
        asked = json.loads(line)
        sampling = SamplingParams(**asked.get("sampling", {}))
        prompt = edge.tokenize(asked["prompt"])
        request = Request(prompt, sampling, make_policy(asked.get("policy", "adaptive")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"this request is not understood ({error}): {line.strip()[:200]}") from error
    generation = edge.generation(request)
    record = await run_generation(
        edge, generation, lambda text, drafted: _event("text", text=text, drafted=drafted)
    )
    _event("done", **record)


def _event(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


# both -------------------------------------------------------------------------------------------------------


async def run_generation(edge: Edge, generation: Generation, show: Any) -> dict[str, Any]:
    """Iterate over a generation. `show(text, drafted)` gets each piece; the record says all that happened.

    `arrivals_ms` are the tokens' times of arrival in milliseconds since the request.
    """
    from edge_client.edge import TextDecoder, reason_in_words

    decoder = TextDecoder(edge.runtime)
    tokens: list[int] = []
    arrivals: list[float] = []
    began = time.monotonic()
    async for emit in generation:
        elapsed = (time.monotonic() - began) * 1e3
        tokens += emit.tokens
        arrivals += [elapsed] * len(emit.tokens)
        if show is not None:
            for index, token in enumerate(emit.tokens):
                show(decoder.feed([token]), not emit.server_made >> index & 1)
    if show is not None and (rest := decoder.finish()):
        show(rest, False)
    session = generation.session
    if session.text != tuple(tokens):
        raise PeerError("the text shown is not the session's; please report this")
    return {
        "tokens": tokens,
        "text": TextDecoder(edge.runtime).feed(tokens),
        "arrivals_ms": arrivals,
        "ended": reason_in_words(generation.reason),
        "modes": [{"mode": each.mode.value, "why": each.why} for each in generation.modes],
        "stats": asdict(session.stats),
        "bytes_up": generation.traffic.up,
        "bytes_down": generation.traffic.down,
        "smoothed_rtt_ms": (session.view.rtt.smoothed_rtt or 0.0) * 1e3,
        "draft_times": asdict(session.draft_times),
        "target_times": asdict(session.target_times),
    }


def _open_edge(options: argparse.Namespace) -> Edge:
    try:
        from edge_client.edge import Edge
        from edge_client.llama.runtime import LlamaRuntime
        from edge_client.llama.settings import LlamaSettings
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[edge]'") from error
    priors = None if options.prior is None else read_priors(options.prior)
    pin_to_core(options.core)
    settings = LlamaSettings(
        path=options.draft, n_ctx=options.context, threads=options.threads, gpu_layers=options.gpu_layers
    )
    return Edge(LlamaRuntime(settings), options.verifier, priors=priors)
