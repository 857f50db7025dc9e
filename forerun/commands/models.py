"""Implements `forerun models`: runs the conformance probe on a target model."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cloud_verifier.settings import ATTENTIONS
from common.errors import UserError
from common.llama.model import find_model
from common.llama.store import is_gguf
from forerun.options import REQUIRED, JsonOption, add_command, models_folder, option

DESCRIPTION = """\
Load a target model and run the probe that every target must pass before it is served:

  forerun models --check path/to/model --dtype bfloat16
  forerun models --check path/to/model.gguf

Exit code 0 if the verifier can serve the model, else 2 with a message. docs/models.md lists the families."""


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(JsonOption):
    """Declares which model is probed, and how it would be served."""

    check: str = option(REQUIRED, "model folder, hub id or GGUF file to load and probe", "PATH")
    device: str = option("cpu", "device of torch: cpu, cuda or cuda:N")
    dtype: str = option("auto", "float32, bfloat16 or float16 (default: as `forerun verify` chooses)")
    attention: str = option("auto", "attention backend", choices=ATTENTIONS)
    quantize: str | None = option(None, "quantization, as for `forerun verify`", "KIND")
    windows: str = option(
        "shrunk",
        "size of sliding windows: the model's own, or 128 positions, which is faster",
        choices=("real", "shrunk"),
    )
    threads: int = option(0, "threads; 0: as `forerun verify` chooses", "N")


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

    from cloud_verifier.engine.loading import backend_of, check
    from cloud_verifier.engine.model.transformers_adapter import load_target
    from cloud_verifier.engine.probe_script import REAL, SHRUNK

    model = load_target(
        options.check, dtype=options.dtype, device=options.device, quantization=options.quantize
    )
    backend = backend_of(options.attention, model.device)
    report = check(model, backend, REAL if options.windows == "real" else SHRUNK)
    facts = {
        "model": model.name,
        "served": True,
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
    print(json.dumps(facts, indent=1) if options.json else _verdict(facts))
    return 0


def _run_gguf(options: ModelsOptions) -> int:
    usual = {each.name: each.default for each in fields(options)}
    for name in ("device", "dtype", "attention", "quantize", "windows"):
        if getattr(options, name) != usual[name]:
            raise UserError(f"--{name} is for models of transformers, and {options.check} is a GGUF file")

    from cloud_verifier.core.batching import most_rows
    from cloud_verifier.core.nouns import SchedulerConfig
    from cloud_verifier.engine.probe_script import REAL, slots_for
    from cloud_verifier.llama.engine import LlamaEngine
    from cloud_verifier.llama.loading import TOLERANCE, LlamaOptions, open_runtime, probe

    limits, path = SchedulerConfig(), find_model(options.check, models_folder(options.check))
    slots = slots_for(REAL.shortest)
    llama = LlamaOptions(threads=options.threads)
    with open_runtime(path, slots, limits.max_rows, most_rows(limits), llama) as runtime:
        report = probe(LlamaEngine(runtime, slots, name=Path(path).stem), REAL)
        facts = {
            "model": Path(path).stem,
            "served": True,
            "format": runtime.description,
            "rows": report.num_rows,
            "worst": report.worst,
            "median": report.median,
            "tolerance": TOLERANCE,
        }
    lines = [
        f"{facts['model']} can be served by llama.cpp: {facts['format']}.",
        f"  {facts['rows']} rows of its packed path are within {facts['worst']:.0e} of llama.cpp alone "
        f"({facts['tolerance']:.0e} is allowed), the median within {facts['median']:.0e}",
    ]
    print(json.dumps(facts, indent=1) if options.json else "\n".join(lines))
    return 0


def _verdict(facts: dict[str, Any]) -> str:
    exactness = facts["exactness"]
    lines = [
        f"{facts['model']} can be served, in {facts['dtype']}.",
        f"  {facts['layers']} layers: {'; '.join(facts['attention']) or 'no attention'}",
        f"  {facts['rows']} rows of its packed path are within {facts['worst']:.0e} of plain transformers "
        f"({facts['tolerance']:.0e} is allowed)",
        f"  its attention is off by {facts['attention_error']:.1%} of what rounding explains",
        f"  weights take {facts['weight_bytes'] / 1e6:,.1f} MB, "
        f"a token of KV {facts['kv_bytes_per_token']:,} bytes",
    ]
    if facts["state_bytes"]:
        lines.append(f"  a state of its layers takes {facts['state_bytes'] / 1e6:,.1f} MB")
    if exactness is not None:
        lines.insert(4, f"  its error by rounding is {exactness:.2f} times that of plain transformers")
    return "\n".join(lines)
