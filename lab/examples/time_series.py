"""Forecasts a time series by speculation over the real stack: tokens are the bins of its values.

    python -m lab.examples.time_series

A value's bin is a token, so an autoregressive model of bins is a token model, and the edge, the wire and the
verifier run it as it is. The forecast is one path drawn from the target's law, the same with and without the
draft. STRIDE (arXiv 2511.18191) drafts patches of real values instead. Its rule redraws a rejected patch from
the target, which is not exact; the rule here is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloud_verifier.core.engine_protocol import (
    IntArray,
    StepItem,
    StepPlan,
    StepResult,
    TargetEngine,
    TargetInfo,
)
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.choice import Choice, Logits, choose, rank_adjusted
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.core import effects as edge
from edge_client.core.policies import make_policy
from edge_client.core.session import EdgeSession
from edge_client.network.channel import VerifierChannel
from edge_client.network.generation import Generation

BINS, LOW, HIGH = 64, -4.0, 4.0  # tokens, and the standardised values that the outermost stand for
CENTERS = np.linspace(LOW, HIGH, BINS)
TABLE = tuple(f"{center:+.2f} ".encode() for center in CENTERS)  # a token's bytes
VOCABULARY = Vocabulary(TABLE)
HOURS, PROMPT, FORECAST = 24 * 60, 24 * 4, 24 * 4
SAMPLING = SamplingParams(max_tokens=FORECAST, temperature=1.0, seed=7, ignore_eos=True)


def binned_series(seed: int = 1) -> IntArray:
    """Return [HOURS] tokens of an hourly load with a daily rhythm, a weekly one and correlated noise."""
    rng, hours = np.random.default_rng(seed), np.arange(HOURS)
    noise = np.zeros(HOURS)
    for hour in range(1, HOURS):
        noise[hour] = 0.8 * noise[hour - 1] + 0.3 * rng.standard_normal()
    daily, weekly = np.sin(2 * np.pi * hours / 24), np.sin(2 * np.pi * hours / 168)
    values = 1.5 * daily + 0.5 * weekly + noise
    standard = (values - values.mean()) / values.std()
    return np.asarray(np.abs(standard[:, None] - CENTERS).argmin(axis=1), np.int32)


@dataclass(frozen=True)
class BinModel:
    """Predicts the next bin from the last `len(weights) - 1` values: a normal law, seen through the bins."""

    weights: np.ndarray  # [lags + 1], the newest last; then the constant
    deviation: float

    @classmethod
    def trained(cls, tokens: IntArray, lags: int) -> BinModel:
        """Fit an autoregression by least squares."""
        values = CENTERS[tokens]
        past = np.lib.stride_tricks.sliding_window_view(values, lags)[:-1]
        inputs = np.hstack([past, np.ones((len(past), 1))])
        weights = np.linalg.lstsq(inputs, values[lags:], rcond=None)[0]
        return cls(weights, float((values[lags:] - inputs @ weights).std()))

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Return float32 [BINS] after these tokens, of which there are at least as many as lags."""
        lags = len(self.weights) - 1
        mean = CENTERS[list(tokens[-lags:])] @ self.weights[:-1] + self.weights[-1]
        return np.asarray(-0.5 * ((CENTERS - mean) / self.deviation) ** 2, np.float32)


class BinTarget(TargetEngine):
    """A `TargetEngine` whose KV slots hold tokens."""

    def __init__(self, model: BinModel, info: TargetInfo) -> None:
        self.info, self._model = info, model
        self._slots = np.zeros(info.num_slots, np.int32)

    def evaluate(self, plan: StepPlan) -> StepResult:
        chosen = [self._item(item) for item in plan.items]
        tokens = tuple(np.array([each.token for each in item], np.int32) for item in chosen)
        margins = tuple(np.array([each.margin for each in item], np.float32) for item in chosen)
        return StepResult(tokens, margins)

    def _item(self, item: StepItem) -> list[Choice]:
        prefix = self._slots[item.prefix_slots].tolist()
        self._slots[item.slots] = item.tokens
        paths = list[list[int]]()
        for token, parent in zip(item.tokens.tolist(), item.parents.tolist(), strict=True):
            paths.append([*(prefix if parent < 0 else paths[parent]), token])
        rows = [paths[row] for row in item.outputs.tolist()]
        return [choose(self._model.logits(path), item.sampling, len(path) - 1) for path in rows]


class BinDraft:
    """The `Drafts` of one session. A draft step takes no time worth a thread."""

    def __init__(self, model: BinModel) -> None:
        self._model = model

    def submit(self, effect: edge.DraftEffect, on_drafted: edge.Drafted) -> None:
        if isinstance(effect, edge.Expand):
            expansions = [self._expand(row) for row in effect.rows]
            asyncio.get_running_loop().call_soon(on_drafted, expansions, edge.NOTHING_READ)
            return
        if isinstance(effect, edge.StartDrafter):
            self._tip, self._paths, self._sampling = effect.tip, {effect.tip: effect.tokens}, effect.sampling
            return
        for node, token in effect.change.committed:
            self._paths[node] = (*self._paths.pop(self._tip), token)
            self._tip = node
        for node in effect.change.dead:
            self._paths.pop(node, None)

    def _expand(self, row: edge.DraftRow) -> edge.Expansion:
        if row.parent is not None:
            self._paths[row.id] = (*self._paths[row.parent], row.token)
        path = self._paths[row.id]
        best = rank_adjusted(self._model.logits(path), self._sampling, len(path) - 1, 4)
        return edge.Expansion(row.id, tuple(best.tokens.tolist()), tuple(best.scores.tolist()))


def alone(model: BinModel, prompt: Sequence[int]) -> tuple[int, ...]:
    """Return the forecast of the model by itself, a token at a time."""
    text = list(prompt)
    for _ in range(FORECAST):
        text.append(choose(model.logits(text), SAMPLING, len(text) - 1).token)
    return tuple(text[len(prompt) :])


async def forecast(target: BinModel, draft: BinModel, prompt: Sequence[int]) -> EdgeSession:
    """Return the finished session of a forecast over gRPC, with a verifier of its own."""
    info = TargetInfo("time series", BINS, 4096, 4096, (), VOCABULARY.fingerprint)
    worker = Worker(BinTarget(target, info), VerifyScheduler(info, SchedulerConfig()))
    config = edge.SessionConfig(tuple(prompt), SAMPLING, VOCABULARY.fingerprint)
    session = EdgeSession(config, make_policy("sync:6"))
    async with (
        Server(worker, info, TABLE, "127.0.0.1:0") as server,
        VerifierChannel(f"127.0.0.1:{server.port}") as channel,
    ):
        async for _ in Generation(session, channel, BinDraft(draft)):
            pass
    return session


def main() -> None:
    tokens = binned_series()
    target, draft = BinModel.trained(tokens, lags=48), BinModel.trained(tokens, lags=3)
    prompt = tokens[-PROMPT:].tolist()
    session = asyncio.run(forecast(target, draft, prompt))
    stats = session.stats
    count, steps = stats.committed, stats.target_steps
    print(f"{count} hours in {steps} target steps instead of {count}; {stats.accepted} were drafted")
    print("identical to the target's own forecast:", session.text == alone(target, prompt))


if __name__ == "__main__":
    main()
