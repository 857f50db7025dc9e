"""`forerun models`: which target models are served, by running the conformance probe."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud_verifier.engine.attention_names import ATTENTIONS
from common.errors import UserError
from forerun.models_table import as_json, write_tables

if TYPE_CHECKING:
    from cloud_verifier.engine.conformance import Finding
    from cloud_verifier.engine.families import Family

DESCRIPTION = """\
Runs the probe that every target model must pass at its load on a tiny random model of each family that
Forerun knows, with the family's real sliding windows, and says which are served and why the others are not:

  forerun models
  forerun models gemma mixtral

or on a model of your own, without serving it:

  forerun models --check path/to/model --dtype bfloat16

Exit code 0 if the model is served, 2 with a sentence if not."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "models",
        help="which target models the verifier serves, and whether it serves yours",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("names", nargs="*", metavar="FAMILY", help="families whose name or model type holds this word")
    option("--check", metavar="PATH", help="a model folder or hub id to load and probe")
    option("--device", default="cpu", help="of --check (%(default)s)")
    option("--dtype", help="float32, bfloat16 or float16 (a family: all; --check: as it would be served)")
    option("--attention", default="auto", choices=ATTENTIONS, help="of --check (%(default)s)")
    option("--quantize", metavar="KIND", help="of --check, as `forerun verify` has it")
    option(
        "--windows",
        choices=("real", "shrunk"),
        help="sliding windows as they are, or of 128 positions as at a load, which is faster (a family: real "
        "in float32; --check: shrunk)",
    )
    option("--threads", type=int, default=0, metavar="N", help="torch's threads; 0 leaves torch's own choice")
    option("--json", action="store_true", help="print JSON in place of text")
    option("--markdown", type=Path, metavar="FILE", help="put the tables of all families into this file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check_options(options)
    try:
        import torch
        import transformers  # noqa: F401 - only to see whether it is there
    except ImportError as error:
        raise UserError(f"{error.name} is not installed; pip install 'forerun[verifier]'") from error
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.check is not None:
        _check_model(options)
    else:
        _list_families(options)
    return 0


def _check_options(options: argparse.Namespace) -> None:
    if options.check is not None and (options.names or options.markdown):
        raise UserError("--check probes one model; leave families and --markdown out")
    if options.check is None and options.quantize is not None:
        raise UserError("--quantize belongs to --check; the families are probed as they are")
    if options.markdown is not None and (options.names or options.dtype or options.windows):
        raise UserError("--markdown writes the tables of all families, in all precisions; leave the rest out")


def _list_families(options: argparse.Namespace) -> None:
    findings = []
    for finding in _findings(options):
        findings.append(finding)
        if not options.json:
            print(_line(finding), flush=True)
    if options.json:
        print(json.dumps([as_json(finding) for finding in findings], indent=1))
    if options.markdown is not None:
        write_tables(options.markdown, findings)


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    from cloud_verifier.engine.conformance import PRECISIONS, examine

    precisions = PRECISIONS if options.dtype is None else (options.dtype,)
    for family in _chosen(options.names):
        yield examine(family, precisions, real_windows=options.windows != "shrunk")


def _chosen(words: list[str]) -> list[Family]:
    """The families that a word of `words` names, all without words. Raises `UserError` for a useless word."""
    from cloud_verifier.engine.families import REFUSED_FAMILIES, SERVED_FAMILIES

    families = [*SERVED_FAMILIES, *REFUSED_FAMILIES]
    for word in words:
        if not any(_names(word, family) for family in families):
            raise UserError(f"no family is called '{word}'; `forerun models` lists them")
    return [family for family in families if not words or any(_names(word, family) for word in words)]


def _names(word: str, family: Family) -> bool:
    return word.lower() in family.name.lower() or word.lower() in family.model_type


def _line(finding: Finding) -> str:
    family = finding.family
    if not finding.served:
        return f"{family.name:22} refused  {finding.reason}"
    errors = [
        f"{precision} {report.worst:.0e}"
        if report.exactness is None
        else f"{precision} x{report.exactness:.2f}"
        for precision, report in finding.reports.items()
    ]
    return f"{family.name:22} served   {finding.attention:34} {', '.join(errors)}"


def _check_model(options: argparse.Namespace) -> None:
    """Raises `UserError` if it cannot be served."""
    from cloud_verifier.engine.acceleration import backend_of
    from cloud_verifier.engine.loading import check
    from cloud_verifier.engine.probe_script import REAL, SHRUNK
    from cloud_verifier.engine.transformers_adapter import load_target

    model = load_target(
        options.check, dtype=options.dtype or "auto", device=options.device, quantization=options.quantize
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
    }
    print(json.dumps(facts, indent=1) if options.json else _verdict(facts))


def _verdict(facts: dict[str, Any]) -> str:
    exactness = facts["exactness"]
    lines = [
        f"{facts['model']} is served, in {facts['dtype']}.",
        f"  {facts['layers']} layers: {'; '.join(facts['attention'])}",
        f"  {facts['rows']} rows of its packed path are within {facts['worst']:.0e} of plain transformers "
        f"({facts['tolerance']:.0e} is allowed)",
        f"  its attention is off by {facts['attention_error']:.1%} of what rounding explains",
        f"  weights take {facts['weight_bytes'] / 1e6:,.1f} MB, "
        f"a token of KV {facts['kv_bytes_per_token']:,} bytes",
    ]
    if exactness is not None:
        lines.insert(4, f"  its error by rounding is {exactness:.2f} times that of plain transformers")
    return "\n".join(lines)
