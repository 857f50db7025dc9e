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
                "served": True,
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
    print(json.dumps(facts, indent=1) if options.json else _gguf_verdict(facts))
    return 0


def _gguf_verdict(facts: dict[str, Any]) -> str:
    equal = f"{facts['equal_rows']} of {facts['rows']} rows of packed steps equal llama.cpp alone to the bit"
    lines = [f"{facts['model']} can be served by llama.cpp: {facts['format']}.", f"  {equal}"]
    if facts["deterministic"]:
        lines.append("  equal requests get equal texts")
    else:
        lines.append(
            f"  the others differ by {facts['median']:.2g} of the logits' spread (median); rounding explains "
            f"{facts['rounding']:.2g}, so that equal requests may get different texts at near ties"
        )
    times = ", ".join(f"{rows}: {ms:g}" for rows, ms in facts["decode_ms"].items())
    lines.append(f"  milliseconds of a decode by its rows: {times}")
    return "\n".join(lines)


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
