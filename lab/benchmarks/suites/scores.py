"""Lets lm-eval score a target through the daemon without drafts and with: texts and scores must be the same.

    python -m lab.benchmarks.suites.scores --target smollm2-135m.gguf --draft smollm2-135m.gguf --prompts DIR

DIR holds gsm8k_test.jsonl and HumanEval.jsonl. Nothing of them is copied: the tasks, written at run time,
name the files. The policy waits for its drafts, so that a busy machine drafts as much as an idle one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.log_format import hush_libraries
from lab.bench.report import finish, parser_of, table
from lab.benchmarks.daemon import DaemonProcess
from lab.benchmarks.suites import run
from lab.rig import Processes

TASKS = {
    "sums": ("gsm8k_test.jsonl", "Question: {{question}}\nAnswer:", "{{answer}}", ["Question:"]),
    "functions": ("HumanEval.jsonl", "{{prompt}}", "{{canonical_solution}}", ["\ndef", "\nclass", "\nif"]),
}
"""Each task's file, question, answer, and what ends a text. Their score, chrF, sees every character."""

SUMS = ("tokens", "accepted", "wasted", "target_steps")


def tasks(prompts: Path, tokens: int) -> list[dict[str, Any]]:
    """Return the tasks as lm-eval describes them. No text is longer than `tokens`."""
    described = list[dict[str, Any]]()
    for name, (file, question, answer, ends) in TASKS.items():
        described.append(
            {
                "task": name,
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str((prompts / file).absolute())}},
                "test_split": "test",
                "output_type": "generate_until",
                "doc_to_text": question,
                "doc_to_target": answer,
                "generation_kwargs": {
                    "temperature": 0.0,
                    "do_sample": False,
                    "until": ends,
                    "max_gen_toks": tokens,
                },
                "metric_list": [{"metric": "chrf"}],
            }
        )
    return described


def compared(alone: Mapping[str, Any], drafted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return for each task both scores, and how many texts are equal."""
    return [
        {
            "task": task,
            "score": told["score"],
            "score_drafted": drafted[task]["score"],
            "texts": len(told["texts"]),
            "equal": sum(map(operator.eq, told["texts"], drafted[task]["texts"])),
        }
        for task, told in alone.items()
    ]


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Score the target alone, then with drafts. Return the comparison, and the daemon's figures of both."""
    described, out, log = folder / "tasks.json", folder / "scores.json", folder / "daemon.log"
    described.write_text(json.dumps(tasks(options.prompts, options.tokens)))
    async with Processes() as processes:
        target = ("--model", str(options.target), "--slots", "4096", "--threads", "1")
        _, address = await processes.start_verifier(*target)
        told = (
            "--draft",
            str(options.draft),
            "--policy",
            "sync:4",
            "--log-level",
            "info",
            "--log-format",
            "json",
        )
        async with DaemonProcess(folder, "--verifier", address, *told) as daemon:
            models = ("target", "default")
            await run(
                "lm_eval", folder, daemon.address, str(described), str(options.limit), str(out), *models
            )
    alone, drafted = json.loads(out.read_text()).values()
    ended = [
        each for each in map(json.loads, log.read_text().splitlines()) if each["message"] == "text ended"
    ]
    half = len(ended) // 2
    sums = [
        {name: sum(each[name] for each in part) for name in SUMS} for part in (ended[:half], ended[half:])
    ]
    return {"tasks": compared(alone, drafted), "alone": sums[0], "drafted": sums[1]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 1 if a text or a score differs."""
    hush_libraries()
    parser = parser_of("suites.scores", __doc__)
    option = parser.add_argument
    option("--target", type=Path, required=True, metavar="FILE", help="GGUF file of the target")
    option("--draft", type=Path, required=True, metavar="FILE", help="GGUF file of the draft model")
    option("--prompts", type=Path, required=True, metavar="DIR", help="folder of the tasks' data")
    option("--limit", type=int, default=50, metavar="N", help="texts of each task (%(default)s)")
    option("--tokens", type=int, default=64, metavar="N", help="most tokens of a text (%(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="forerun-scores-") as folder:
        report = asyncio.run(measure(options, Path(folder)))
    finish(options, report, table(report["tasks"]) + table([report["alone"], report["drafted"]]))
    rows = report["tasks"]
    same = all(row["score"] == row["score_drafted"] and row["texts"] == row["equal"] for row in rows)
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
