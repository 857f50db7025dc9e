"""Compares the times that guidellm and aiperf measure with the daemon's own figures of the same requests.

    python -m lab.benchmarks.suites.times --json

Each client sends its requests one after the other to a daemon, first to the target alone and then with
drafts. Every step of the verifier takes the same known time (`lab.benchmarks.clocked_verifier`). The
daemon's figures are those of its log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from lab.bench.report import finish, parser_of, table
from lab.benchmarks.daemon import DaemonProcess
from lab.benchmarks.suites import run
from lab.demo_models import TARGET_DIR
from lab.rig import START_TIMEOUT, Processes
from training.prompts import bundled


@dataclass(frozen=True, slots=True)
class Times:
    """Holds one request's times in milliseconds, from its start, and its number of tokens."""

    first_token: float
    last_token: float
    tokens: int

    @property
    def between_tokens(self) -> float:
        return (self.last_token - self.first_token) / (self.tokens - 1)


async def guidellm(
    folder: Path, address: str, model: str, prompts: Sequence[str], tokens: int
) -> list[Times]:
    """Return what guidellm measures. Its file says when the last token came by the time between tokens."""
    data = {"prompt": list(prompts), "output_tokens_count": [tokens] * len(prompts)}
    spec = {
        "backend": {
            "kind": "openai_http",
            "target": f"http://{address}",
            "model": model,
            "request_format": "/v1/completions",
            "extras": {"body": {"temperature": 0}},
        },
        "data": [{"kind": "in_memory_dict", "data": data}],
        "tokenizer": {"kind": "huggingface_auto", "model": str(TARGET_DIR)},
        "profile": {"kind": "synchronous"},
        "constraints": [{"kind": "max_requests", "count": len(prompts)}],
        "outputs": [{"kind": "json", "path": str(folder / "guidellm.json")}],
    }
    (folder / "scenario.json").write_text(json.dumps({"spec": spec}))
    words = ("run", "--config", str(folder / "scenario.json"), "--disable-console")
    await run("guidellm", folder, sysconfig.get_path("purelib"), *words)
    told = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]["requests"]["successful"]
    return [
        Times(first := each["time_to_first_token_ms"], first + between * (count - 1), count)
        for each in told
        for between, count in [(each["inter_token_latency_ms"], each["output_tokens"])]
    ]


async def aiperf(folder: Path, address: str, model: str, prompts: Sequence[str], tokens: int) -> list[Times]:
    """Return what aiperf measures."""
    lines = [json.dumps({"text": prompt, "output_length": tokens}) for prompt in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    out = folder / f"aiperf-{model}"
    server = ("--model", model, "--url", f"http://{address}", "--endpoint-type", "completions", "--streaming")
    data = ("--input-file", str(folder / "prompts.jsonl"), "--custom-dataset-type", "single_turn")
    counts = ("--request-count", str(len(prompts)), "--concurrency", "1", "--use-server-token-count")
    extra = ("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0")
    quiet = ("--tokenizer", str(TARGET_DIR), "--ui", "none", "--no-gpu-telemetry", "--no-server-metrics")
    own = ("--output-artifact-dir", str(out))
    await run("aiperf", folder, "profile", *server, *data, *counts, *extra, *quiet, *own)
    told = [json.loads(line)["metrics"] for line in (out / "profile_export.jsonl").read_text().splitlines()]
    names = ("time_to_first_token", "request_latency", "output_sequence_length")
    return [Times(*(each[name]["value"] for name in names)) for each in told]


CLIENTS = {"guidellm": guidellm, "aiperf": aiperf}


def logged(lines: Sequence[str]) -> list[Times]:
    """Return the daemon's own figures of the texts that ended in these lines of its log."""
    ended = (each for each in map(json.loads, lines) if each["message"] == "text ended")
    return [Times(each["first_token_ms"], each["elapsed_ms"], each["tokens"]) for each in ended]


def means(times: Sequence[Times]) -> dict[str, float]:
    """Return the means over requests, and the tokens of all requests over the time of all."""
    return {
        "first_token_ms": mean(each.first_token for each in times),
        "between_tokens_ms": mean(each.between_tokens for each in times),
        "tokens_per_s": 1e3 * sum(each.tokens for each in times) / sum(each.last_token for each in times),
    }


def compared(theirs: Sequence[Times], ours: Sequence[Times]) -> dict[str, Any]:
    """Return both views' means, and by how many percent theirs are above ours."""
    assert [each.tokens for each in theirs] == [each.tokens for each in ours], "the same requests"
    row: dict[str, Any] = {"requests": len(ours)}
    for (name, their), our in zip(means(theirs).items(), means(ours).values(), strict=True):
        more = round(100 * (their / our - 1), 1)
        row |= {name: round(our, 1), f"{name}_theirs": round(their, 1), f"{name}_percent": more}
    return row


async def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run each client without drafts, and with."""
    rows, prompts = list[dict[str, Any]](), bundled()[:1] * options.requests
    log = folder / "daemon.log"
    async with Processes() as processes:
        step = ("--step", str(options.step))
        verifier = await processes.start("verifier", *step, module="lab.benchmarks.clocked_verifier")
        address = (await verifier.read(START_TIMEOUT))["listening"]
        told = ("--verifier", address, "--log-level", "info", "--log-format", "json")
        async with DaemonProcess(folder, *told) as daemon:
            for name, client in CLIENTS.items():
                for model in ("target", "default"):
                    before = len(log.read_text().splitlines())
                    theirs = await client(folder, daemon.address, model, prompts, options.tokens)
                    ours = logged(log.read_text().splitlines()[before:])
                    rows.append({"client": name, "model": model, **compared(theirs, ours)})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = parser_of("suites.times", __doc__)
    option = parser.add_argument
    option("--step", type=float, default=30.0, metavar="MS", help="target step time (%(default)s)")
    option("--requests", type=int, default=20, metavar="N", help="of each run (%(default)s)")
    option("--tokens", type=int, default=64, metavar="N", help="tokens of each text (%(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forerun-times-") as folder:
        rows = asyncio.run(measure(options, Path(folder)))
    finish(options, rows, table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
