"""Implements `forerun models`: runs the conformance probe on a target model."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from cloud_verifier.settings import ATTENTIONS
from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from common.llama.files import find_model, is_gguf
from forerun.options import JsonOption

CHECKED_SLOTS = 1024
"""KV slots of the check of a GGUF target, which needs a tenth of them."""

DESCRIPTION = """\
Load a target model and run the probe that every target must pass before it is served:

  forerun models --check path/to/model --dtype bfloat16
  forerun models --check path/to/model.gguf

Exit code 0 if the verifier can serve the model, else 2 with a message. docs/targets.md lists the families."""


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(JsonOption):
    """Declares which model is probed, and how it would be served."""

    check: str = setting(REQUIRED, "model folder, hub id or GGUF file to load and probe", "PATH")
    device: str = setting("cpu", "device of torch: cpu, cuda or cuda:N")
    dtype: str = setting("auto", "float32, bfloat16 or float16 (default: as `forerun verify` chooses)")
    attention: str = setting("auto", "attention backend", choices=ATTENTIONS)
    quantize: str | None = setting(None, "quantization, as for `forerun verify`", "KIND")
    threads: int = setting(0, "threads; 0: as `forerun verify` chooses", "N")
    deterministic: bool | None = setting(None, "as for `forerun verify`; for GGUF targets")


def add_parser(commands: Any) -> None:
    words = "check whether the verifier can serve a target model"
    add_command(commands, "models", words, _run, ModelsOptions, DESCRIPTION)


def _run(options: ModelsOptions) -> int:
    """Raise `UserError` if the model cannot be served."""
    if is_gguf(options.check):
        return _run_gguf(options)
    import torch
    import transformers  # noqa: F401 - only to see whether it is there

    if options.threads:
        torch.set_num_threads(options.threads)

    from cloud_verifier.engine.model.transformers_adapter import load_target
    from cloud_verifier.engine.torch_loading import backend_of, check

    model = load_target(
        options.check, dtype=options.dtype, device=options.device, quantization=options.quantize
    )
    report = check(model, backend_of(options.attention, model.device))
    facts = {
        "model": model.name,
        "dtype": model.dtype_name,
        "layers": model.num_layers,
        "attention": [shape.describe() for shape in report.shapes],
        "rows": report.num_rows,
        "worst": report.worst,
        "tolerance": report.tolerance,
        "attention_error": report.attention,
        "exactness": report.exactness,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": report.kv_bytes,
        "state_bytes": report.state_bytes,
    }
    return _show(facts, as_json=options.json)


def _run_gguf(options: ModelsOptions) -> int:
    usual = {each.name: each.default for each in fields(options)}
    for name in ("device", "dtype", "attention", "quantize"):
        if getattr(options, name) != usual[name]:
            raise UserError(f"--{name} is for models of transformers, and {options.check} is a GGUF file")

    from cloud_verifier.core.batching import most_rows
    from cloud_verifier.core.limits import SchedulerConfig
    from cloud_verifier.llama.llama_loading import LlamaOptions, load_engine

    limits, path = SchedulerConfig(), find_model(options.check)
    llama = LlamaOptions(threads=options.threads, deterministic=options.deterministic)
    with Console(stderr=True).status("") as status:

        def progress(work: str, share: float | None = None) -> None:
            status.update(work if share is None else f"{work} ({share:.0%})")

        engine, _, report = load_engine(
            path, CHECKED_SLOTS, limits.max_rows, most_rows(limits), llama, progress=progress
        )
        with engine.runtime as runtime:
            shapes = report.shapes
            facts = {
                "model": Path(path).stem,
                "format": runtime.description,
                "rows": report.num_rows,
                "equal_rows": report.num_equal,
                "median": report.median,
                "worst": report.worst,
                "rounding": report.noise,
                "deterministic": shapes.repeats,
                "decode_ms": {rows: round(1e3 * seconds, 2) for rows, seconds in shapes.times},
                "decodes": {rows: shapes.cut(rows, runtime.max_rows) for rows, _ in shapes.times},
                "seconds": report.seconds,
            }
    return _show(facts, as_json=options.json)


def _show(facts: dict[str, Any], *, as_json: bool) -> int:
    """Print what the probe found. A model that cannot be served has raised an error before."""
    if as_json:
        print(json.dumps({"served": True, **facts}, indent=1))
        return 0
    print(f"{facts['model']} can be served")
    for name, value in facts.items():
        if value not in (None, "", [], 0):
            shown = f"{value:.3g}" if isinstance(value, float) else value
            print(f"  {name.replace('_', ' ')}: {', '.join(shown) if isinstance(shown, list) else shown}")
    return 0
