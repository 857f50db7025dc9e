"""Runs the parts: each method yields findings, and prepares what it needs from earlier parts."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloud_verifier.engine.attention.torch_ref import TorchRefBackend
from cloud_verifier.engine.attention.triton_backend import TritonBackend
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.torch_engine import TorchEngine
from cloud_verifier.engine.torch_loading import accelerate, release
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from lab.benchmarks.gpu_step import checks, guesses, serving, steps, vllm_decode
from lab.benchmarks.gpu_step.clock import TimeBudget, TimedCapture
from lab.benchmarks.gpu_step.rates import RateRun, Texts, prompts_of, slots_for
from lab.benchmarks.gpu_step.settings import GpuSettings, build

LEAST_SERVING = 150.0
"""Seconds that an 8B model's verifier needs: its weights are written and read, its graphs made."""

Row = dict[str, Any]


class Parts:
    """Runs the parts. `budget` is in seconds. `out` gets the verifier's log, `scratch` its model."""

    def __init__(
        self, settings: GpuSettings, device: torch.device, budget: float, out: Path, scratch: Path | None
    ) -> None:
        self._settings = settings
        self._device = device
        self._budget = TimeBudget(budget)
        self._out = out
        self._scratch = scratch
        self._tiny = device.type != "cuda"
        self._backend = TorchRefBackend if self._tiny else TritonBackend

    def checks(self) -> Iterator[Row]:
        """Check kernels, choices and graphs beside their references."""
        settings, device = self._settings, self._device
        yield from checks.kernel_errors(device, settings.check_seeds, quick=self._tiny)
        rows = 6 if self._tiny else 60
        yield {"choices of": rows, **checks.choice_errors(device, rows, settings.shape.vocab_size)}
        cases = [("llama", torch.float32)]
        if not self._tiny:
            cases += [(name, torch.float32) for name in ("gemma2", "gpt_oss")] + [("llama", torch.bfloat16)]
        yield from checks.load_errors(device, self._backend())
        capture = TimedCapture(device)
        yield from checks.graph_errors(device, capture, num_steps=settings.check_steps, cases=cases)

    def guesses(self) -> Iterator[Row]:
        """Check the own drafter beside the reference, and time it beside a step."""
        tiny = checks.tiny_model("llama", self._device, torch.float32)
        yield guesses.guess_errors(tiny, self._backend(), self._settings.check_steps)
        yield from guesses.guess_times(self._model, self._settings, self._backend())
        del self.__dict__["_model"]  # which keeps features from now on
        release()

    def bandwidth(self) -> Iterator[Row]:
        """Measure the device's bandwidth."""
        yield self._rates

    def host(self) -> Iterator[Row]:
        """Measure a step's cost before it reaches the device."""
        yield from steps.host_times(self._settings)

    def attention(self) -> Iterator[Row]:
        """Measure one layer's attention alone."""
        yield from steps.attention_times(self._model, self._settings, self._copy_rate, self._share(0.25))

    def steps(self) -> Iterator[Row]:
        """Measure whole steps beside their floor."""
        yield from steps.StepTimer(self._model, self._settings, self._rates, self._share(0.6)).measure()
        gc.collect()

    def profile(self) -> Iterator[Row]:
        """Profile an eager step."""
        yield from steps.where_time_goes(self._model, self._settings)

    def rates(self) -> Iterator[Row]:
        """Measure tokens a second, plain and with drafts; each twice, as the first run makes graphs."""
        settings = self._settings
        engine = self._engine(slots_for(max(settings.rate_sessions), settings))
        for count in settings.rate_sessions:
            if self._budget.left < 30.0:
                yield {"sessions": count, "skipped": "no time was left"}
                continue
            prompts, texts = prompts_of(count, settings), None
            for acceptance in (1.0, *settings.acceptances):
                if not self._tiny:
                    RateRun(engine, settings, prompts, texts, acceptance).run()
                run = RateRun(engine, settings, prompts, texts, acceptance)
                yield run.run()
                texts = texts or run.written()
        counts = engine.runner.counts
        step_counts = {"graph_steps": counts.graph, "eager_steps": counts.eager, "captures": counts.captures}
        yield {**step_counts, "reasons": dict(counts.reasons)}

    def serving(self) -> Iterator[Row]:
        """Measure a real verifier with the same model over gRPC."""
        settings, reason = self._settings, serving.missing()
        least = 0.0 if self._tiny else LEAST_SERVING
        if not reason and self._budget.left < least:
            reason = f"{self._budget.left:.0f} s were left, and this part takes {least:.0f}"
        if reason:
            yield {"skipped": reason}
            return
        sizes, vocab_size = (2, settings.served_prompt), settings.shape.vocab_size
        random = np.random.default_rng(11)
        prompts = [list(map(int, row)) for row in random.integers(vocab_size, size=sizes)]
        engine = self._engine(settings.served_prompt + settings.served_tokens + 64)
        expected = [serving.own_text(engine, prompt, settings) for prompt in prompts]
        with serving.saved(self._model, self._scratch) as folder:
            del engine, self.__dict__["_model"]  # the verifier wants the memory
            release()
            rows = self._served(folder, prompts, expected)
            with asyncio.Runner() as runner:  # row by row, so that an interruption loses little
                while (row := runner.run(_next(rows))) is not None:
                    yield row

    def vllm(self) -> Iterator[Row]:
        """Measure vLLM's plain decode of the same model, if vLLM is installed."""
        reason = vllm_decode.missing()
        if not reason and self._budget.left < LEAST_SERVING:
            reason = f"{self._budget.left:.0f} s were left, and this part takes {LEAST_SERVING:.0f}"
        if reason:
            yield {"skipped": reason}
            return
        with serving.saved(self._model, self._scratch) as folder:
            del self.__dict__["_model"]  # vLLM wants the memory
            release()
            loads = [load for load in self._settings.loads if load.nodes == 1]
            sessions, context = [load.sessions for load in loads], loads[0].context
            yield from vllm_decode.measure(folder, context, sessions, self._budget.left - 30.0)

    async def _served(self, folder: Path, prompts: Texts, expected: Texts) -> AsyncIterator[Row]:
        settings, log = self._settings, self._out / "verify.log"
        fingerprint = Vocabulary(serving.words(settings.shape.vocab_size)).fingerprint
        patience, begun_at = max(60.0, self._budget.left - 30.0), time.perf_counter()
        async with serving.verifier(folder, self._device, patience, log) as address:
            yield {"load_s": round(time.perf_counter() - begun_at, 1)}
            greedy = SamplingParams(max_tokens=settings.served_tokens, ignore_eos=True)
            for number, prompt in enumerate(prompts):
                text, took = await serving.ask(address, prompt, greedy, fingerprint)
                row = {"text": number + 1, "prompt": len(prompt), **took}
                yield {**row, "right": text == expected[number]}
            sampling = replace(greedy, temperature=0.8, top_p=0.9, seed=1)
            text, took = await serving.ask(address, prompts[0][::-1], sampling, fingerprint)
            row = {"text": "sampled, top-p", "prompt": len(prompts[0]), **took}
            yield {**row, "right": len(text) == settings.served_tokens}
        yield serving.logged_slots(log, settings, getattr(torch, settings.dtype))

    def _engine(self, num_slots: int) -> TorchEngine:
        """An engine as `forerun verify` makes it; on a CPU by the reference."""
        engine = TorchEngine(self._model, num_slots, backend=self._backend())
        accelerate(engine)
        return engine

    def _share(self, share: float) -> TimeBudget:
        """Part of the time that is left."""
        return TimeBudget(share * self._budget.left)

    @cached_property
    def _model(self) -> TargetModel:
        model = build(self._settings.shape, self._device, getattr(torch, self._settings.dtype))
        model.merge_projections()  # as a load does
        return model

    @cached_property
    def _rates(self) -> dict[str, float]:
        return steps.bandwidth(self._settings.copied_bytes, self._device)

    @property
    def _copy_rate(self) -> float:
        return self._rates["bytes_per_second"]


async def _next(rows: AsyncIterator[Row]) -> Row | None:
    return await anext(rows, None)
