"""What single parts take at real sizes: a draft step, a verifier's step, its choices, long prompts, memory.

Each function returns rows of one table: a mapping of column to value.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.api_overhead import Daemon
from benchmarks.draft_step import StepBench, TimedRuntime
from benchmarks.real_sizes.end_to_end import Cell, OracleRig, Settings
from benchmarks.real_sizes.pair import Pair, Text
from benchmarks.real_sizes.texts import Prompt, keep, long_prompt, open_model, short_prompts, texts_of
from cloud_verifier.core.target import StepItem
from common.figures import pace, rounded
from common.grammar import Tokens, json_schema_grammar
from common.sampling import SamplingParams
from edge_client.llama.settings import LlamaSettings
from forerun.doctor import child as doctor
from forerun.doctor.draft import ask_child
from forerun.doctor.examine import Given, measured
from forerun.doctor.link import check_link
from forerun.doctor.outlook import look_ahead, world_of
from forerun.rig import START_TIMEOUT, Child

Rows = list[dict[str, Any]]

SESSIONS, ROWS, CONTEXT = (1, 8, 32), 9, 4_000
"""Of a step whose choices are timed: sessions, rows of each, tokens of each prompt."""

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def draft_step(pair: Pair, formats: Sequence[str], widths: Sequence[int], steps: int) -> Rows:
    """`LlamaDrafter.expand` and the llama_decode within it, a row on each of so many branches, one thread."""
    found: Rows = []
    for kind in formats:
        with TimedRuntime(LlamaSettings(str(pair.draft(kind)), n_ctx=1024, threads=1)) as runtime:
            bench = StepBench(runtime, 256)
            for temperature in (0.0, 0.8):
                for width in widths:
                    times = bench.measure("branches", width, temperature, steps)
                    found.append(
                        {
                            "format": kind,
                            "temperature": temperature,
                            "rows": width,
                            "decode_ms": rounded(times.inside_us / 1e3),
                            "expand_ms": rounded(times.expand_us / 1e3),
                            "ratio": rounded(times.expand_us / times.inside_us),
                        }
                    )
    return found


def verify_step(pair: Pair, rows: Sequence[int], repeats: int, threads: int) -> Rows:
    """The packed step beside plain transformers, in both types. One set of weights serves both sides."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks import verify_step as bench

    torch.set_num_threads(threads)
    found: Rows = []
    for dtype in ("float32", "bfloat16"):
        plain: Any = AutoModelForCausalLM.from_pretrained(
            str(pair.target), dtype=dtype, use_safetensors=True, attn_implementation="sdpa"
        ).eval()
        packed = copy.deepcopy(plain, {id(weight): weight for weight in plain.parameters()})
        settings = bench.Settings(str(pair.target), 256, repeats, threads, dtype, tuple(rows))
        found += [
            {
                "dtype": dtype,
                "shape": each.shape,
                "rows": each.num_rows,
                "plain_ms": rounded(1e3 * each.plain_time),
                "packed_ms": rounded(1e3 * each.packed_time),
                "ratio": rounded(each.ratio),
            }
            for each in bench.measure(plain, packed, settings)
        ]
        del plain, packed
    return found


# Choices ----------------------------------------------------------------------------------------------------


def choices(pair: Pair, sessions: Sequence[int], repeats: int) -> Rows:
    """Host work of a step's choices, of `ROWS` rows a session: rows, masks and adjustments, for which an
    accelerator waits; and, for one session, what choosing takes on a processor. One thread."""
    import torch

    from benchmarks.real_sizes.oracle import describe
    from cloud_verifier.engine.choice import choose
    from cloud_verifier.engine.engine import choice_rows
    from cloud_verifier.engine.grammar import TargetGrammars
    from common.choice import adjustments

    torch.set_num_threads(1)
    size, end = (describe(pair.target, 1)[0].vocab_size, describe(pair.target, 1)[0].eos_token_ids)
    words = (pair.target / "tokenizer.json").read_text()
    grammars = TargetGrammars(lambda: Tokens.of_tokenizer_json(words, end, size))
    random = np.random.default_rng(1)
    logits = torch.from_numpy(4.3 * random.standard_normal((ROWS, size), np.float32))
    found: Rows = []
    for name, sampling in _samplings(size).items():
        for count in sessions:
            items = [_item(pair, number, sampling, size) for number in range(count)]

            def host(items: Sequence[StepItem] = items) -> None:
                for item in items:
                    for row in choice_rows(item, grammars.mask):
                        adjustments(row.params, row.prompt, row.generated, size)

            rows = choice_rows(items[0], grammars.mask)
            chosen = _time(lambda rows=rows: choose(logits, rows), repeats) if count == 1 else None
            found.append(
                {
                    "sampling": name,
                    "sessions": count,
                    "host_ms_per_step": rounded(1e3 * _time(host, repeats)),
                    "cpu_choice_ms_per_row": None if chosen is None else rounded(1e3 * chosen / ROWS),
                }
            )
    return found


def _samplings(size: int) -> dict[str, SamplingParams]:
    bias = tuple((token, 1.0) for token in range(0, size, max(1, size // 300)))[:300]
    return {
        "greedy": SamplingParams(),
        "T 0.8": SamplingParams(temperature=0.8),
        "T 0.8 top_p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
        "T 0.8 logit_bias 300": SamplingParams(temperature=0.8, logit_bias=bias),
        "T 0.8 JSON schema": SamplingParams(temperature=0.8, grammar=json_schema_grammar(SCHEMA)),
        "T 0.8 frequency 0.5": SamplingParams(temperature=0.8, frequency_penalty=0.5),
        "Qwen's defaults": SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
    }


def _item(pair: Pair, session: int, sampling: SamplingParams, size: int) -> StepItem:
    """A chain after `CONTEXT` tokens of prompt; the text and the rows fit the schema."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    generated = tokenizer.encode('{"name": "').ids
    tokens = tokenizer.encode("one two three four five six seven eight nine").ids[:ROWS]
    start = CONTEXT + len(generated)
    prompt = np.random.default_rng(session).integers(size, size=CONTEXT).astype(np.int32)
    return StepItem(
        session=session,
        prefix_slots=np.arange(start, dtype=np.int32),
        tokens=np.array(tokens, np.int32),
        positions=np.arange(start, start + ROWS, dtype=np.int32),
        parents=np.arange(-1, ROWS - 1, dtype=np.int32),
        slots=np.arange(start, start + ROWS, dtype=np.int32),
        outputs=np.arange(ROWS, dtype=np.int32),
        sampling=sampling,
        prompt=prompt if sampling.reads_text else None,
        generated=np.array(generated, np.int32) if sampling.reads_text else None,
    )


def _time(run: Any, repeats: int) -> float:
    """Seconds, the median; the first run only warms up."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return median(times[1:])


# Long prompts -----------------------------------------------------------------------------------------------


async def long_prompts(
    pair: Pair, draft: str, step_ms: float, settings: Settings, sizes: Sequence[int]
) -> Rows:
    """One text after a prompt of each size, without and with the device, and then two texts in one daemon:
    the pace of a text after a short prompt, alone and while another's longest prompt is read."""
    with open_model(str(pair.draft("bf16"))) as model:
        prompts = [long_prompt(model, size) for size in sizes] + short_prompts(model, 1)
    texts = texts_of(pair, prompts, 0.0, settings.num_tokens)
    found: Rows = []
    async with OracleRig(pair, Cell(step_ms, 0.0, draft), settings, ("off", "adaptive")) as rig:
        for prompt, text in zip(prompts, texts, strict=True):
            for policy in ("off", "adaptive"):
                rig.use(policy)
                sampling = {"temperature": 0.0, "seed": text.seed, "max_tokens": len(text.tokens)}
                run = await rig.complete(prompt.text, policy, {**sampling, "ignore_eos": True})
                found.append(
                    {
                        "prompt_tokens": len(prompt.tokens),
                        "what": policy,
                        "ttft_ms": rounded(run["arrivals_ms"][0]),
                        "ms_per_token": rounded(pace([run])),
                        "proposed": run["stats"]["proposed"],
                        "mode": "; ".join(f"{each['mode']}: {each['why']}" for each in run["modes"]),
                    }
                )
        found += await _beside(
            pair, draft, str(rig.link.address), prompts[-1], texts[-1], prompts[-2], texts[-2]
        )
    return found


async def _beside(
    pair: Pair, draft: str, verifier: str, short: Prompt, brief: Text, long: Prompt, other: Text
) -> Rows:
    with TemporaryDirectory(prefix="forerun-sizes-") as folder, _on_core(0):
        more = ("--draft", str(pair.draft(draft)), "--no-draft-recall", "--ngrams", "0")
        async with Daemon(Path(folder), verifier, *more) as daemon:
            await _daemon_text(daemon, short, brief)  # meanwhile the draft is loaded
            alone = await _daemon_text(daemon, short, brief)
            reading = asyncio.create_task(_daemon_text(daemon, long, other))
            await asyncio.sleep(2.0)  # by then its first token is there, and the device reads
            together = await _daemon_text(daemon, short, brief)
            rest = await reading
    whats = ("alone", "beside the prompt below", "the prompt that is read")
    sizes = (len(short.tokens), len(short.tokens), len(long.tokens))
    return [
        {"prompt_tokens": size, "what": f"daemon, {what}", **row}
        for size, what, row in zip(sizes, whats, (alone, together, rest), strict=True)
    ]


async def _daemon_text(daemon: Daemon, prompt: Prompt, text: Text) -> dict[str, Any]:
    began = time.monotonic()
    body = {"prompt": prompt.text, "max_tokens": len(text.tokens), "temperature": 0, "seed": text.seed}
    reading, arrivals = await daemon.text(body)
    told = next(
        event["forerun"] for event in reversed(reading.events) if "proposed" in event.get("forerun", {})
    )
    later = sum(count for _, count in arrivals[1:])
    return {
        "ttft_ms": rounded(1e3 * (arrivals[0][0] - began)),
        "ms_per_token": rounded(1e3 * (arrivals[-1][0] - arrivals[0][0]) / later),
        "proposed": told["proposed"],
        "mode": " ".join([str(told.get("mode", "")), *map(str, told.get("notes", ()))]),
    }


@contextmanager
def _on_core(index: int) -> Iterator[None]:
    """What is started meanwhile stays on one core, if there are two."""
    if not hasattr(os, "sched_getaffinity") or (os.cpu_count() or 1) < 2:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {index})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# What doctor expects ----------------------------------------------------------------------------------------


async def outlook(pair: Pair, draft: str, step_ms: float, settings: Settings) -> Rows:
    """How many times as fast as streaming `forerun doctor` expects drafting to be, and how many it is."""
    with open_model(str(pair.draft("bf16"))) as model:
        own = Prompt("doctor", doctor.PROMPT, tuple(model.tokenize(doctor.PROMPT, True)))
        prompts = short_prompts(model, settings.num_texts)
    keep(pair, replace(texts_of(pair, [own], 0.0, doctor.Asked().tokens)[0], seed=SamplingParams().seed))
    texts = texts_of(pair, prompts, 0.0, settings.num_tokens)
    async with OracleRig(pair, Cell(step_ms, 0.0, draft), settings, ("off", "adaptive")) as rig:
        address = str(rig.link.address)
        asked = doctor.Asked(str(pair.draft(draft)), threads=1, address=address)
        link = await asyncio.to_thread(check_link, address, None)
        with _on_core(0):
            told = await asyncio.to_thread(ask_child, asked)
        found = measured(told, link, Given())
        paces = {}
        for policy in ("off", "adaptive"):
            rig.use(policy)
            runs = [
                await rig.complete(prompt.text, policy, asdict(text.sampling))
                for prompt, text in zip(prompts, texts, strict=True)
            ]
            paces[policy] = pace(runs)
    expected, seen = look_ahead(world_of(found)).speedup, paces["off"] / paces["adaptive"]
    return [
        {
            "step_ms": step_ms,
            "right": found.acceptance,
            "expected": rounded(expected),
            "doctors_own_texts": rounded(found.seen or 0.0),
            "seen": rounded(seen),
            "expected_over_seen": rounded(expected / seen),
        }
    ]


# Memory and starts ------------------------------------------------------------------------------------------


async def memory(pair: Pair, formats: Sequence[str], settings: Settings, threads: int) -> Rows:
    """Seconds until a process is ready, its memory then or after a text, and the most it took. Linux only."""
    found: Rows = []
    for dtype in ("float32", "bfloat16"):
        words = ["verify", "--model", str(pair.target), "--listen", "127.0.0.1:0", "--json", "--grace", "0"]
        words += ["--log-level", "warning", "--dtype", dtype, "--threads", str(threads)]
        began = time.monotonic()
        child = await Child.start("verifier", *words)
        try:
            await child.read(START_TIMEOUT)
            ready = time.monotonic() - began
            found.append({"what": f"verifier {dtype}", "ready_s": rounded(ready), **_sizes_of(child.pid)})
        finally:
            await child.stop()
    with open_model(str(pair.draft("bf16"))) as model:
        prompts = short_prompts(model, 1)
    (text,) = texts_of(pair, prompts, 0.0, settings.num_tokens)
    for kind in formats:
        async with OracleRig(pair, Cell(30.0, 0.0, kind), settings, ("first",)) as rig:
            began = time.monotonic()
            edge = await rig.start_edge("chain")
            ready = time.monotonic() - began
            rig.use("chain")
            sampling = {"max_tokens": len(text.tokens), "seed": text.seed, "ignore_eos": True}
            await rig.complete(prompts[0].text, "chain", sampling)
            found.append({"what": f"edge {kind}", "ready_s": rounded(ready), **_sizes_of(edge.pid)})
    return found


def _sizes_of(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    names = {"VmRSS": "resident_mb", "VmHWM": "peak_mb"}
    found = {name: re.search(rf"{key}:\s+(\d+)", status) for key, name in names.items()}
    return {name: round(int(match[1]) / 1e3 * 1.024) for name, match in found.items() if match}


def shown(rows: Rows) -> str:
    """A table for a terminal."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([_cell(row.get(key)) for key in columns] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells
    )


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
