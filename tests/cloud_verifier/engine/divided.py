"""Families divided among two processes; `python -m tests.cloud_verifier.engine.divided NAME[@DTYPE] ...`.

Each tiny random model is saved, loaded by two ranks as `forerun verify --tensor-parallel` loads it, probed by
both together, and its logits are compared with those of one process. torch and transformers are imported
once, and each rank is forked from there. Prints a line of JSON per family.
"""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.utils import logging as hf_logging

from cloud_verifier.engine.conformance_probe import probe
from cloud_verifier.engine.model import transformers_adapter
from cloud_verifier.engine.model.transformers_adapter import TargetModel, load_target
from cloud_verifier.engine.parallel import join, leave
from tests.cloud_verifier.engine.conformance import random_target
from tests.cloud_verifier.engine.families import SERVED_FAMILIES, Family
from tests.cloud_verifier.engine.ranks import fork_ranks, wait_for

TOKENS = list(range(5, 30))


def logits_of(model: TargetModel) -> Tensor:
    with model.plain(), torch.inference_mode():
        return model.plain_logits(TOKENS, len(TOKENS))


def num_wrapped(model: TargetModel) -> int:
    """Linear layers of the decoder that transformers wraps at every call."""
    found = [module for layer in model.layers for module in layer.modules()]
    return sum(type(module) is torch.nn.Linear and isinstance(module.weight, DTensor) for module in found)


def run_rank(rank: int, folder: Path, dtype: str, whole: TargetModel, out: Path) -> NoReturn:
    """Load this rank's part, probe it with the other, and have rank 0 write what was found to `out`."""
    code = 1
    try:
        found = probe_part(folder, dtype, whole)
        if rank == 0:
            out.write_text(json.dumps(found))
        code = 0
    finally:
        os._exit(code)


def probe_part(folder: Path, dtype: str, whole: TargetModel) -> dict[str, Any]:
    ranks = join("cpu", 60.0)
    part = load_target(str(folder), dtype=dtype, with_tokenizer=False, num_processes=ranks.size)
    report = probe(part)
    logits, expected = logits_of(part), logits_of(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers_adapter, "multiply_directly", lambda _: None)
        wrapped = load_target(str(folder), dtype=dtype, with_tokenizer=False, num_processes=ranks.size)
    head = cast(Any, part.module).get_output_embeddings()
    no_rows = head(torch.zeros(1, 0, head.in_features, dtype=part.dtype))
    same = torch.equal(logits, logits_of(wrapped))
    leave()
    return {
        "worst": report.worst,
        "exactness": report.exactness,
        "from_one_process": float((logits - expected).square().mean().sqrt() / expected.std()),
        "weights": part.weight_bytes / whole.weight_bytes,
        "logits": str(logits.dtype),
        "head": str(head.weight.dtype).removeprefix("torch."),
        "no_rows": [*no_rows.shape],
        "as_wrapped": same,
        "num_wrapped": [num_wrapped(model) for model in (part, wrapped)],
    }


def divide(family: Family, dtype: str) -> dict[str, Any]:
    """What two processes find of `family`."""
    whole = random_target(family.name, family.model_type, family.settings, dtype=dtype)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole.module.save_pretrained(folder)
        out = folder / "found.json"
        run = partial(run_rank, folder=folder, dtype=dtype, whole=whole, out=out)
        codes = wait_for(fork_ranks(run), None)
        found = json.loads(out.read_text()) if out.exists() else {}
    return {"family": family.name, "dtype": dtype, "codes": codes, **found}


def main() -> None:
    asked = dict(name.partition("@")[::2] for name in sys.argv[1:])
    torch.set_num_threads(1)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    for family in SERVED_FAMILIES:
        if family.name in asked:
            print(json.dumps(divide(family, asked[family.name] or "float32")), flush=True)


if __name__ == "__main__":
    main()
