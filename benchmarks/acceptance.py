"""What each acceptance rule brings at the same draft, and what it costs on the wire.

    python -m benchmarks.acceptance --json > docs/measured/acceptance.json

With the real demo pair, edge session, scheduler, rules and messages, in virtual time (`acceptance_world`): no
figure depends on this machine's speed.

    positions  the chance that a draft is accepted at one position, worked out from both laws at positions of
               the target's own text. The same positions for every rule, so that they can be compared closely.
    blocks     without delay; the edge sends a tree of a fixed shape and waits for the verdict, and the
               verifier for it. What a rule accepts where all drafts come in time.
    ahead      over a link; neither side waits (fill), so that many drafts come late or hang below tokens that
               the verifier had to write itself. What a rule brings where Forerun is meant to be used.

A text of a sampled rule is another one than the coupled rule's with the same seed, of the same law; the
standard error is that of the mean over texts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import demo_models
from benchmarks.acceptance_world import NO_TIME, ShapePolicy, Times, Written, write
from common.acceptance import make_acceptance
from common.draft import MAX_TOKENS
from common.errors import ForerunError
from common.sampling import SamplingParams
from edge_client.core.config import SessionConfig
from edge_client.core.policies import GrowthPolicy, make_policy
from forerun.options import ms
from forerun.prompts import add_prompts, prompts_from

if TYPE_CHECKING:
    from cloud_verifier.engine.engine import TorchEngine
    from edge_client.llama.drafter import LlamaDrafter

CHAIN, TREE = (1, 1, 1, 1, 1, 1), (2, 2, 1, 1)
"""Children at each level: six nodes one below the other, and fourteen in a tree."""

BLOCKS = (
    ("coupled", CHAIN),
    ("rejection", CHAIN),
    ("block", CHAIN),
    ("coupled", TREE),
    ("specinfer", TREE),
    ("lenience:0.5", CHAIN),
    ("typical", CHAIN),
    ("topk-gap", CHAIN),
    ("bild", CHAIN),
)
AHEAD = (
    ("coupled", "off"),
    ("coupled", "chain"),
    ("rejection", "chain"),
    ("block", "chain"),
    ("coupled", "adaptive"),
    ("specinfer", "adaptive"),
    ("coupled", "sync:4"),
    ("block", "sync:4"),
)
TOPS = (1, 2, 4, 8, 16, 32, MAX_TOKENS)


class Benchmark:
    """All texts of a run: the same prompts and seeds under every rule. `options` as parsed."""

    def __init__(
        self,
        engine: TorchEngine,
        drafter: LlamaDrafter,
        prompts: Sequence[tuple[int, ...]],
        options: argparse.Namespace,
    ) -> None:
        self._engine, self._drafter, self._prompts, self._options = engine, drafter, prompts, options

    def measure(self) -> dict[str, Any]:
        """The whole report."""
        options = self._options
        times = Times(options.rtt, options.target_step, options.draft_step)
        settings = {"texts": len(self._prompts), "tokens": options.max_tokens}
        settings |= {f"{name}_ms": 1e3 * getattr(times, name) for name in Times.__dataclass_fields__}
        return {
            "settings": settings,
            "positions": [self._positions(sampling) for sampling in options.sampling],
            "blocks": list(self._blocks()),
            "ahead": list(self._ahead(times)),
        }

    def _positions(self, sampling: SamplingParams) -> dict[str, Any]:
        from benchmarks.acceptance_positions import at_position, laws

        found = []
        for seed, prompt in enumerate(self._prompts):
            config = self._config("coupled", sampling, seed, prompt)
            written = write(self._engine, self._drafter, config, ShapePolicy(TREE), NO_TIME)
            text = (*prompt, *written.text)  # the target's own, whatever the draft is
            both = laws(self._engine, self._drafter, text[:-1], len(prompt) - 1, config.sampling)
            for place, (target, draft) in enumerate(zip(*both, strict=True)):
                found.append(at_position(target, draft, TOPS, len(prompt) + place))
        names = ("coupled", "coupled_two", "overlap", "specinfer_two", "by_equality")
        means = {name: round(mean(getattr(each, name) for each in found), 4) for name in names}
        cut = {
            str(top): round(mean(each.rejection[place] for each in found), 4)
            for place, top in enumerate(TOPS)
        }
        _note(f"{_told(sampling)}: {means}, rejection by tokens of a draft: {cut}")
        return {
            **_told(sampling),
            "positions": len(found),
            **means,
            "rejection_by_tokens_of_a_draft": cut,
        }

    def _blocks(self) -> Iterator[dict[str, Any]]:
        for sampling in self._options.sampling:
            for rule, widths in BLOCKS:
                found = self._texts(rule, sampling, partial(ShapePolicy, widths), NO_TIME)
                found.pop("ms_per_token")
                shape = "x".join(map(str, widths))
                yield {**_told(sampling), "rule": rule, "shape": shape, **found}

    def _ahead(self, times: Times) -> Iterator[dict[str, Any]]:
        for sampling in self._options.sampling:
            for rule, policy in AHEAD:
                found = self._texts(rule, sampling, partial(make_policy, policy), times)
                yield {**_told(sampling), "rule": rule, "policy": policy, **found}

    def _texts(
        self, rule: str, sampling: SamplingParams, policy: Callable[[], GrowthPolicy], times: Times
    ) -> dict[str, Any]:
        texts = [
            write(self._engine, self._drafter, self._config(rule, sampling, seed, prompt), policy(), times)
            for seed, prompt in enumerate(self._prompts)
        ]
        found = figures(texts)
        _note(f"{_told(sampling)}, {rule}: {found}")
        return found

    def _config(
        self, rule: str, sampling: SamplingParams, seed: int, prompt: tuple[int, ...]
    ) -> SessionConfig:
        return SessionConfig(
            prompt,
            replace(sampling, seed=seed, max_tokens=self._options.max_tokens, ignore_eos=True),
            self._engine.info.fingerprint,
            patience=None,
            acceptance=make_acceptance(rule),
        )


def figures(texts: Sequence[Written]) -> dict[str, Any]:
    """Of several texts under one rule: ratios of sums, and how far the texts' own lengths differ."""
    tokens, proposed = sum(len(text.text) for text in texts), sum(text.proposed for text in texts)
    lengths = [len(text.text) / text.target_steps for text in texts]
    num_bytes = sum(text.bytes_proposed for text in texts)
    return {
        "acceptance_length": round(tokens / sum(text.target_steps for text in texts), 3),
        "standard_error": round(stdev(lengths) / len(lengths) ** 0.5, 3) if len(lengths) > 1 else None,
        "bytes_per_draft_token": round(num_bytes / proposed, 1) if proposed else None,
        "bytes_per_token": round(num_bytes / tokens, 1),
        "draft_tokens_per_token": round(proposed / tokens, 2),
        "ms_per_token": round(1e3 * mean(text.seconds / max(1, len(text.text) - 1) for text in texts), 2),
    }


def load(options: argparse.Namespace) -> Benchmark:
    """The models, and the prompts as tokens. Raises `UserError`."""
    import torch

    from cloud_verifier.engine.loading import load_engine
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings

    torch.set_num_threads(options.threads)
    engine, _ = load_engine(str(options.target), 4096, dtype="float32")
    runtime = LlamaRuntime(LlamaSettings(str(options.draft), n_ctx=2048, threads=options.threads))
    prompts = [tuple(runtime.tokenize(text, True)) for text in prompts_from(options)] * options.texts
    return Benchmark(engine, LlamaDrafter(runtime), prompts, options)


def sampling_named(name: str) -> SamplingParams:
    """A temperature, and `top_k` behind a colon. Raises `UserError` or `ValueError`."""
    temperature, _, top_k = name.partition(":")
    return SamplingParams(temperature=float(temperature), top_k=int(top_k or 0))


def _told(sampling: SamplingParams) -> dict[str, float]:
    return {"temperature": sampling.temperature, "top_k": sampling.top_k}


def _note(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def print_tables(report: dict[str, Any]) -> None:
    """Each part as a table for people."""
    for part in ("positions", "blocks", "ahead"):
        columns = list(report[part][0])
        print(f"\n{part}\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for row in report[part]:
            print(f"| {' | '.join(str(row[column]) for column in columns)} |")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    add_prompts(parser, count=8)
    option("--texts", type=int, default=4, metavar="N", help="of each prompt, by other seeds (%(default)s)")
    option("--target", type=Path, default=demo_models.TARGET_DIR, help="a folder (the demo target)")
    option("--draft", type=Path, default=demo_models.DRAFT_GGUF, help="a GGUF file (the demo draft)")
    option(
        "--sampling",
        type=sampling_named,
        nargs="+",
        default=[sampling_named(name) for name in ("0.8", "1", "0.8:40")],
        metavar="T[:K]",
        help="temperatures, each with a top-k or without (0.8 1 0.8:40)",
    )
    option("--max-tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option("--rtt", type=ms, default=0.06, metavar="MS", help="of `ahead` (60)")
    option("--target-step", type=ms, default=0.03, metavar="MS", help="of `ahead` (30)")
    option("--draft-step", type=ms, default=0.005, metavar="MS", help="of `ahead` (5)")
    option("--threads", type=int, default=1, metavar="N", help="of each model (%(default)s)")
    option("--json", action="store_true", help="one object instead of tables")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        report = load(options).measure()
    except ForerunError as error:
        print(f"benchmarks.acceptance: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        print_tables(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
