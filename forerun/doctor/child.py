"""The process that loads the draft for `forerun doctor`: whatever a damaged file does to it, doctor goes on.

Reads one JSON object (`Asked`) and writes one a line about each thing that it has found out.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from common.errors import ForerunError
from common.privacy import Privacy
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary, explain_mismatch

if TYPE_CHECKING:
    from edge_client.channel import VerifierChannel
    from edge_client.core.pace import DraftPace
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime

PROMPT = "The weather report for tomorrow says that"
STEPS = 64
"""Draft steps that are timed at most; a step takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to try. An empty path: only what llama.cpp says of this machine; an empty address: no texts."""

    path: str = ""
    models: str = ""
    context: int = 2048
    threads: int = 0
    gpu_layers: int = 0
    address: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""
    token_file: str = ""
    plain: bool = True
    tokens: int = 64  # of each text

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    """The whole process."""
    asked = Asked(**json.load(sys.stdin))
    try:
        _run(asked)
    except ForerunError as error:
        _tell("error", words=str(error))


def _run(asked: Asked) -> None:
    from edge_client.llama.library import library

    _tell("system", info=library().llama_print_system_info().decode())
    if not asked.path:
        return
    from edge_client.core.pace import DraftPace
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.pace import measure_pace
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings

    began = time.monotonic()
    settings = LlamaSettings(
        path=asked.path,
        n_ctx=asked.context,
        threads=asked.threads,
        gpu_layers=asked.gpu_layers,
        models=asked.models,
    )
    with LlamaRuntime(settings) as runtime:
        _tell("loaded", description=runtime.description, seconds=time.monotonic() - began)
        tables = measure_pace(runtime)
        pace = DraftPace()
        tables.teach(pace)
        _tell("pace", rows=tables.rows, reads=tables.reads)
        drafter = LlamaDrafter(runtime)
        prompt = tuple(runtime.tokenize(PROMPT, True))
        _tell("steps", **_draft_steps(drafter, prompt, prompt))
        if asked.address:
            asyncio.run(_with_verifier(asked, runtime, drafter, pace, prompt))


def _draft_steps(drafter: LlamaDrafter, prompt: tuple[int, ...], text: tuple[int, ...]) -> dict[str, Any]:
    """Walk along `text` after `prompt`, a step a token: how long a step takes, and how often its best
    candidate is the text's next token."""
    from edge_client.core.drafter import DraftRow, Reroot

    way = [*prompt, *text]
    drafter.start(prompt, 1, SamplingParams())
    times, right = list[float](), 0
    for number, place in enumerate(range(len(prompt) - 1, min(len(way) - 1, len(prompt) + STEPS)), 1):
        began = time.perf_counter()
        (expansion,) = drafter.expand([DraftRow(number, None, way[place], place)])
        times.append(time.perf_counter() - began)
        right += bool(expansion.tokens) and expansion.tokens[0] == way[place + 1]
        drafter.reroot(Reroot(((number + 1, way[place + 1]),), ()))
    return {"step_ms": median(times[1:] or times) * 1e3, "right": right, "of": len(times)}


async def _with_verifier(
    asked: Asked, runtime: LlamaRuntime, drafter: LlamaDrafter, pace: DraftPace, prompt: tuple[int, ...]
) -> None:
    from edge_client.channel import VerifierChannel

    async with VerifierChannel(asked.address, tls=tls_of(asked)) as channel:
        vocabulary = Vocabulary(runtime.token_table())
        if not await _compare(vocabulary, channel):
            return
        plain = await _write(asked, vocabulary, channel, prompt, None, pace)
        _tell("text", drafted=False, **plain)
        _tell("rank", **_draft_steps(drafter, prompt, tuple(plain["tokens"])))
        _tell("text", drafted=True, **await _write(asked, vocabulary, channel, prompt, drafter, pace))


async def _compare(vocabulary: Vocabulary, channel: VerifierChannel) -> bool:
    told = await channel.describe()
    same = told.fingerprint == vocabulary.fingerprint
    words = f"{vocabulary.num_tokens} tokens, fingerprint {vocabulary.fingerprint.hex()[:16]}"
    if not same:
        table = (await channel.describe(include_vocabulary=True)).vocabulary
        words = explain_mismatch(vocabulary, Vocabulary(list(table or ())))
    _tell("tokens", same=same, words=words)
    return same


async def _write(
    asked: Asked,
    vocabulary: Vocabulary,
    channel: VerifierChannel,
    prompt: tuple[int, ...],
    drafter: LlamaDrafter | None,
    pace: DraftPace,
) -> dict[str, Any]:
    """A greedy text by the target, with drafts or without."""
    from edge_client.core.config import SessionConfig
    from edge_client.core.policies import make_policy
    from edge_client.core.session import EdgeSession
    from edge_client.draft_worker import DraftWorker
    from edge_client.generation import Generation

    sampling = SamplingParams(max_tokens=asked.tokens, ignore_eos=True)
    name = f"doctor-{'drafts' if drafter else 'plain'}"
    config = SessionConfig(
        prompt,
        sampling,
        vocabulary.fingerprint,
        session_id=name,
        patience=None,
        max_attempts=1,
        privacy=Privacy.PADDED,  # as the daemon's; a verifier may insist on more
    )
    session = EdgeSession(config, make_policy("adaptive" if drafter else "off"), pace=pace)
    worker = DraftWorker(drafter) if drafter is not None else None
    arrivals, tokens = list[float](), list[int]()
    if worker is not None:
        worker.__enter__()
    try:
        async for emit in Generation(session, channel, worker):
            tokens += emit.tokens
            arrivals += [time.monotonic()] * len(emit.tokens)
    finally:
        if worker is not None:
            worker.__exit__()
    stats = session.stats
    return {
        "tokens": tokens,
        "ms_per_token": (arrivals[-1] - arrivals[0]) * 1e3 / max(1, len(arrivals) - 1) if arrivals else 0.0,
        "step_ms": stats.compute_time * 1e3 / max(1, stats.target_steps),
        "accepted": stats.accepted,
    }


def tls_of(asked: Asked) -> Any:
    """For the channel; None without TLS."""
    from edge_client.tls import TlsSettings

    if asked.plain:
        return None
    files = (asked.ca, asked.cert, asked.key, asked.token_file)
    ca, cert, key, token = (Path(each) if each else None for each in files)
    return TlsSettings(ca, cert, key, asked.server_name, token)


def _tell(stage: str, **found: Any) -> None:
    print(json.dumps({"stage": stage, **found}), flush=True)


if __name__ == "__main__":
    main()
