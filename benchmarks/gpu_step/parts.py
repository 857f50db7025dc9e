"""The parts of a run, each a method without arguments; a part makes what it needs of the parts before it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_step import checks, serving, steps
from benchmarks.gpu_step.clock import Budget, TimedCapture
from benchmarks.gpu_step.model import build
from benchmarks.gpu_step.rates import Run, Texts, prompts_of, slots_for
from benchmarks.gpu_step.settings import Settings
from cloud_verifier.engine.acceleration import accelerate
from cloud_verifier.engine.engine import TorchEngine
from cloud_verifier.engine.memory import release
from cloud_verifier.engine.torch_ref import TorchRefBackend
from cloud_verifier.engine.transformers_adapter import TargetModel
from cloud_verifier.engine.triton_attention import TritonBackend
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary

LEAST_SERVING = 150.0
"""Seconds that an 8B model's verifier needs: its weights are written and read, its graphs made."""

Tell = Callable[[str, dict[str, Any]], None]


class Parts:
    """One run. `tell` takes each finding under its part's name; `budget` is in seconds. The verifier's log
    goes to `out`, and its model to a folder in `scratch`."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        tell: Tell,
        budget: float,
        out: Path,
        scratch: Path | None = None,
    ) -> None:
        self._settings = settings
        self._device = device
        self._tell = tell
        self._budget = Budget.of(budget)
        self._out = out
        self._scratch = scratch
        self._tiny = device.type != "cuda"

    def checks(self) -> None:
        """Kernels, choices and graphs beside their references."""
        settings, device = self._settings, self._device
        for row in checks.kernel_errors(device, settings.check_seeds, quick=self._tiny):
            self._tell("checks", row)
        rows = 6 if self._tiny else 60
        self._tell(
            "checks", {"choices of": rows, **checks.choice_errors(device, rows, settings.shape.vocab_size)}
        )
        cases = [("llama", torch.float32)]
        if not self._tiny:
            cases += [(name, torch.float32) for name in ("gemma2", "gpt_oss")] + [("llama", torch.bfloat16)]
        for row in checks.load_errors(device, TorchRefBackend() if self._tiny else TritonBackend()):
            self._tell("checks", row)
        capture = TimedCapture(device)
        for row in checks.graph_errors(device, capture, num_steps=settings.check_steps, cases=cases):
            self._tell("checks", row)

    def bandwidth(self) -> None:
        """What the device can do."""
        self._tell("bandwidth", self._rates)

    def host(self) -> None:
        """What a step costs before it reaches the device."""
        for row in steps.host_times(self._settings):
            self._tell("host", row)

    def attention(self) -> None:
        """One layer's attention alone."""
        rows = steps.attention_times(self._model, self._settings, self._copy_rate, self._share(0.25))
        for row in rows:
            self._tell("attention", row)

    def steps(self) -> None:
        """Whole steps beside their floor."""
        timer = steps.StepTimer(self._model, self._settings, self._copy_rate, self._share(0.6))
        timer.measure(lambda row: self._tell("steps", row))
        gc.collect()

    def profile(self) -> None:
        """Where an eager step's time goes."""
        for row in steps.where_time_goes(self._model, self._settings):
            self._tell("profile", row)

    def rates(self) -> None:
        """Tokens a second, plain and with drafts."""
        most = max(self._settings.rate_sessions)
        engine = self._serving(slots_for(most, self._settings))
        for count in self._settings.rate_sessions:
            if self._budget.left < 30.0:
                self._tell("rates", {"sessions": count, "skipped": "no time was left"})
                continue
            prompts = prompts_of(count, self._settings)
            texts = self._rate(engine, prompts)
            for acceptance in self._settings.acceptances:
                self._rate(engine, prompts, texts, acceptance)
        counts = engine.runner.counts
        reasons = dict(counts.reasons)
        found = {"graph_steps": counts.graph, "eager_steps": counts.eager, "captures": counts.captures}
        self._tell("rates", {**found, "reasons": reasons})

    def serving(self) -> None:
        """A real verifier with the same model, and what reaches it over gRPC."""
        reason = serving.missing()
        least = 0.0 if self._tiny else LEAST_SERVING
        if not reason and self._budget.left < least:
            reason = f"{self._budget.left:.0f} s were left, and this takes {least:.0f}"
        if reason:
            self._tell("serving", {"skipped": reason})
            return
        settings, sizes = self._settings, (2, self._settings.served_prompt)
        random = np.random.default_rng(11)
        prompts = [list(map(int, row)) for row in random.integers(settings.shape.vocab_size, size=sizes)]
        engine = self._serving(settings.served_prompt + settings.served_tokens + 64)
        expected = [serving.own_text(engine, prompt, settings) for prompt in prompts]
        fingerprint = Vocabulary(serving.words(settings.shape.vocab_size)).fingerprint
        with serving.saved(self._model, self._scratch) as folder:
            del engine, self.__dict__["_model"]  # the verifier wants the memory
            release()
            self._serve(folder, prompts, expected, fingerprint)

    def _serve(self, folder: Path, prompts: Texts, expected: Texts, fingerprint: bytes) -> None:
        settings, log = self._settings, self._out / "verify.log"
        begun_at = time.perf_counter()
        with serving.verifier(folder, self._device, max(60.0, self._budget.left - 30.0), log) as address:
            self._tell("serving", {"load_s": round(time.perf_counter() - begun_at, 1)})
            greedy = SamplingParams(max_tokens=settings.served_tokens, ignore_eos=True)
            for number, prompt in enumerate(prompts):
                served = serving.ask(address, prompt, greedy, fingerprint)
                row = {"text": number + 1, "prompt": len(prompt), **serving.measured(served)}
                self._tell("serving", {**row, "right": served[0] == expected[number]})
            sampling = replace(greedy, temperature=0.8, top_p=0.9, seed=1)
            served = serving.ask(address, prompts[0][::-1], sampling, fingerprint)
            row = {"text": "sampled, top-p", "prompt": len(prompts[0]), **serving.measured(served)}
            self._tell("serving", {**row, "right": len(served[0]) == settings.served_tokens})
        self._tell("serving", serving.logged_slots(log, settings, getattr(torch, settings.dtype)))

    def _rate(
        self, engine: TorchEngine, prompts: Texts, texts: Texts | None = None, acceptance: float = 1.0
    ) -> Texts:
        """Run twice, as the first run makes graphs; tell of the second. Returns what was written."""
        run = Run(engine, self._settings, prompts, texts, acceptance)
        if not self._tiny:
            run.run()
            run = Run(engine, self._settings, prompts, texts, acceptance)
        self._tell("rates", run.run())
        return run.written()

    def _serving(self, num_slots: int) -> TorchEngine:
        """An engine as `forerun verify` makes it; on a CPU by the reference."""
        backend = TorchRefBackend() if self._tiny else TritonBackend()
        engine = TorchEngine(self._model, num_slots, backend=backend)
        accelerate(engine)
        return engine

    def _share(self, share: float) -> Budget:
        """Part of the time that is left."""
        return Budget.of(share * self._budget.left)

    @cached_property
    def _model(self) -> TargetModel:
        return build(self._settings.shape, self._device, getattr(torch, self._settings.dtype))

    @cached_property
    def _rates(self) -> dict[str, float]:
        return steps.bandwidth(self._settings.copied_bytes, self._device)

    @property
    def _copy_rate(self) -> float:
        return self._rates["bytes_per_second"]
