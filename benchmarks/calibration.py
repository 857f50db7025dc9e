"""How right the draft is, and what the shipped prior should say: its scores beside the target's choices.

    python -m benchmarks.calibration --json

The target continues prompts cut from held-out modules that no bundled prompt comes from; the draft then
scores every position of those texts. For each temperature this prints the rank of the target's choice among
the draft's candidates, the sharpness and miss (`edge_client.core.calibration`) that fit all of it best with
hindsight, and how well the chances of the first candidate were kept when the calibration had to learn them on
the way: promised and observed, bin by bin. `nats` is the mean negative log-likelihood per token.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import demo_models
from common.sampling import SamplingParams
from demo_models.corpus import load_split
from demo_models.prompts import PROMPT_LINES, STARTS
from edge_client.core.calibration import LEAST_SHARPNESS, MOST_SHARPNESS, Calibration, promised
from edge_client.core.confidence import LEAST_MISS, Confidence
from edge_client.core.drafter import Drafter, Expansion
from forerun.record import said_before, write_texts

BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the draft said at one position, and which of its candidates the target chose (None: none)."""

    scores: tuple[float, ...]
    chosen: int | None


def tuning_prompts(per_module: int, seed: int = 5) -> list[str]:
    """Beginnings of functions and classes in held-out modules without a bundled prompt."""
    taken = {module for module, _ in STARTS.values()}
    draw = random.Random(seed)
    prompts: list[str] = []
    for module in load_split().held_out:
        lines = module.text.splitlines(keepends=True)
        starts = [
            place
            for place, line in enumerate(lines[:-PROMPT_LINES])
            if line.lstrip().startswith(("def ", "class "))
        ]
        if module.name not in taken:
            chosen = draw.sample(starts, min(per_module, len(starts)))
            prompts += ["".join(lines[place : place + PROMPT_LINES]) for place in chosen]
    return prompts


def observe(
    drafter: Drafter, prompt: Sequence[int], text: Sequence[int], sampling: SamplingParams
) -> list[Observation]:
    """The draft's candidates before every token of `text`."""
    said = said_before(drafter, prompt, text, sampling)
    return [_held_against(expansion, token) for expansion, token in zip(said, text, strict=True)]


def _held_against(expansion: Expansion, token: int) -> Observation:
    chosen = expansion.tokens.index(token) if token in expansion.tokens else None
    return Observation(expansion.scores, chosen)


def surprise(confidence: Confidence, seen: Observation) -> float:
    """Nats; a choice outside the candidates costs what the miss promised."""
    if seen.chosen is None:
        return -math.log(max(confidence.miss, LEAST_MISS))
    return -promised(confidence, seen.scores)[seen.chosen]


def with_hindsight(texts: Sequence[Sequence[Observation]]) -> tuple[Confidence, float]:
    """The one confidence of a fine grid that fits all texts best, and its mean surprise in nats."""
    every = [seen for text in texts for seen in text]
    miss = max(LEAST_MISS, sum(seen.chosen is None for seen in every) / len(every))
    steps = [LEAST_SHARPNESS + (MOST_SHARPNESS - LEAST_SHARPNESS) * place / 80 for place in range(81)]
    found = [Confidence(math.exp(step), miss) for step in steps]
    nats = [sum(surprise(each, seen) for seen in every) / len(every) for each in found]
    best = min(range(len(found)), key=nats.__getitem__)
    return found[best], nats[best]


def learnt_on_the_way(texts: Sequence[Sequence[Observation]]) -> dict[str, Any]:
    """Every text with a calibration of its own, as a session has it: surprise, and promises by bin."""
    nats, promises = 0.0, list[tuple[float, bool]]()
    for text in texts:
        calibration = Calibration()
        for seen in text:
            nats += surprise(calibration.confidence, seen)
            best = promised(calibration.confidence, seen.scores)[0]
            promises.append((math.exp(best), seen.chosen == 0))
            calibration.observe(seen.scores, seen.chosen)
    bins = []
    for low, high in itertools.pairwise(BINS):
        inside = [(chance, right) for chance, right in promises if low < chance <= high]
        if inside:
            hoped, observed = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            bins.append({"tokens": len(inside), "promised": round(hoped, 3), "observed": round(observed, 3)})
    return {"nats": round(nats / len(promises), 4), "first_candidate": bins}


def report(temperature: float, texts: Sequence[Sequence[Observation]]) -> dict[str, Any]:
    every = [seen for text in texts for seen in text]
    ranks = [sum(seen.chosen is not None and seen.chosen <= rank for seen in every) for rank in range(5)]
    best, nats = with_hindsight(texts)
    prior = sum(surprise(Confidence(), seen) for seen in every) / len(every)
    unshared = sum(surprise(Confidence(1.0), seen) for seen in every) / len(every)
    return {
        "temperature": temperature,
        "tokens": len(every),
        "rank_at_most": {str(rank + 1): round(count / len(every), 3) for rank, count in enumerate(ranks)},
        "hindsight": {
            "sharpness": round(best.sharpness, 2),
            "miss": round(best.miss, 4),
            "nats": round(nats, 4),
        },
        "prior": {"nats": round(prior, 4)},
        "sharpness_1": {"nats": round(unshared, 4)},
        "on_the_way": learnt_on_the_way(texts),
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both models in this process, one after the other."""
    # torch and llama.cpp are loaded here, so that --help comes at once.
    from cloud_verifier.engine.loading import load_engine
    from edge_client.llama.drafter import LlamaDrafter
    from edge_client.llama.runtime import LlamaRuntime
    from edge_client.llama.settings import LlamaSettings

    engine, _ = load_engine(options.target, 32768)
    reports = []
    with LlamaRuntime(LlamaSettings(options.draft)) as runtime:
        prompts = [runtime.tokenize(text, parse_special=False) for text in tuning_prompts(options.per_module)]
        for temperature in options.temperature:
            sampling = SamplingParams(
                temperature=temperature, max_tokens=options.max_tokens, seed=options.seed, ignore_eos=True
            )
            print(f"… temperature {temperature:g}: {len(prompts)} texts", file=sys.stderr, flush=True)
            texts = write_texts(engine, prompts, sampling)
            drafter = LlamaDrafter(runtime)
            seen = [
                observe(drafter, prompt, text, sampling) for prompt, text in zip(prompts, texts, strict=True)
            ]
            reports.append(report(temperature, seen))
    return reports


def print_report(found: dict[str, Any]) -> None:
    """For people."""
    ranks = "  ".join(f"<= {rank}: {share:.3f}" for rank, share in found["rank_at_most"].items())
    best, way = found["hindsight"], found["on_the_way"]
    print(f"temperature {found['temperature']:g}, {found['tokens']} tokens; rank of the choice {ranks}")
    print(
        f"  nats per token: sharpness 1 {found['sharpness_1']['nats']:.3f}, "
        f"prior {found['prior']['nats']:.3f}, "
        f"learnt on the way {way['nats']:.3f}, with hindsight {best['nats']:.3f} "
        f"(sharpness {best['sharpness']:.2f}, miss {best['miss']:.4f})"
    )
    for entry in way["first_candidate"]:
        print(
            f"  promised {entry['promised']:.3f}  observed {entry['observed']:.3f}  {entry['tokens']} tokens"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--per-module", type=int, default=3, metavar="N", help="prompts from each module (%(default)s)")
    option("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")
    option("--max-tokens", type=int, default=96, metavar="N", help="of each text (%(default)s)")
    option("--seed", type=int, default=11)
    option("--target", default=str(demo_models.TARGET_DIR), metavar="PATH")
    option("--draft", default=str(demo_models.DRAFT_GGUF), metavar="PATH")
    option("--json", action="store_true", help="print one JSON array")
    options = parser.parse_args()
    reports = measure(options)
    if options.json:
        print(json.dumps(reports, indent=1))
    else:
        for found in reports:
            print_report(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
