"""Adapts transformers: loads a causal LM and its tokenizer, and calls them.

The model's code is transformers' own, unmodified; only its attention function is ours, through
`AttentionInterface`. No mask function is registered for it, so transformers builds no masks.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils import logging as hf_logging

from cloud_verifier.engine.attention.backend import attention_function
from cloud_verifier.engine.layer_states import take_over
from cloud_verifier.engine.model.checkpoint import TargetCheckpoint, loading, place_of
from cloud_verifier.engine.model.merging import MergedProjections
from cloud_verifier.engine.model.precision import (
    HALF,
    can_widen,
    computes_bfloat16,
    float32_inside,
    install_fp32_head,
    weight_bytes,
)
from cloud_verifier.engine.model.refusals import (
    NO_MEMORY_LAYERS,
    Refusal,
    refuse_architecture,
    refuse_config,
    refuse_division,
)
from cloud_verifier.engine.model.weight_files import check_weights
from common.errors import UserError

logger = logging.getLogger(__name__)

ATTENTION = "forerun"
"""The name our attention function is registered under."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = 100_000_000
"""Parameters below which a CPU gains little from bfloat16, while float32 rounds less."""

NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""How configurations name the number of a layer's experts."""
EXPERTS_OF_ROW = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k")
"""How configurations name the number of experts that a row is sent to."""


class TargetModel(TargetCheckpoint):
    """Holds a causal LM with our attention, and its tokenizer. Raises `UserError` if it cannot be served."""

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        super().__init__(name, model.config, model.generation_config, tokenizer)
        self.module = model.eval()
        refuse_config(name, model.config)
        self.state_layers = take_over(model)  # numbers of the layers that keep a state
        refuse_architecture(name, model, self.state_layers)
        self.num_layers = int(self._text.num_hidden_layers)
        # compressed-tensors rounds in each layer's own forward, in the precision of what it unpacked.
        is_stored_quantized = getattr(model.config, "quantization_config", None) is not None
        self._rounds_inside = is_stored_quantized and any("forward" in vars(each) for each in model.modules())
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._merged: MergedProjections | None = None
        install_fp32_head(model.get_output_embeddings())
        AttentionInterface.register(ATTENTION, cast(Callable[..., Any], attention_function))
        self._use_attention(ATTENTION)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.module.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.module.dtype
        return dtype

    @property
    def dtype_name(self) -> str:
        """Return the dtype's name as an option of `--dtype`."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def computes_in_half(self) -> bool:
        """Return whether hidden states are rounded to bfloat16 or float16."""
        return self.dtype in HALF

    @property
    def can_widen(self) -> bool:
        """Return whether `in_float32` can be entered; some quantizations hide their weights' values, or round
        in the layers."""
        return can_widen(self.module) and not self._rounds_inside

    @property
    def routes_tokens(self) -> bool:
        """Return whether the model sends rows to a choice of experts."""
        settings = self._text.to_dict().items()
        return any("expert" in name and isinstance(value, int) and value > 1 for name, value in settings)

    @property
    def expert_share(self) -> float:
        """Return the share of a layer's experts that one row is sent to, below 1; 0 without experts."""
        number, chosen = (
            next((value for name in names if isinstance(value := getattr(self._text, name, None), int)), 0)
            for names in (NUM_EXPERTS, EXPERTS_OF_ROW)
        )
        return chosen / number if 0 < chosen < number else 0.0

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the weights on this process's device."""
        return weight_bytes(self.module)

    @property
    def sliding_window(self) -> int | None:
        """Return the sliding window that the configuration names, in positions."""
        window = getattr(self._text, "sliding_window", None)
        return window if isinstance(window, int) else None

    def forward(
        self, tokens: Tensor, positions: Tensor, outputs: Tensor, *, embedded: bool = False
    ) -> Tensor:
        """Run the packed rows inside a current step (`attention.current_step`).

        `tokens` and `positions` are int64 [1, T], `outputs` int64 [O] packed rows; all on the model's device.
        If `embedded`, `tokens` are vectors in the place of the tokens' embeddings, [1, T, H]. Returns logits
        float32 [O, V].
        """
        kept = {"logits_to_keep": outputs} if self._keeps_rows else {}
        given = {"inputs_embeds" if embedded else "input_ids": tokens}
        result = self.module(**given, position_ids=positions, use_cache=False, **kept)
        logits: Tensor = result.logits[0]
        return (logits if kept else logits.index_select(0, outputs)).float()

    def merge_projections(self) -> None:
        """Compute projections of one input as one product from now on, except in `plain` and `in_float32`."""
        self._merged = MergedProjections(self.module)

    @property
    def num_memory_layers(self) -> int:
        """Return the number of layers that look back: those without keys, values and state see one token."""
        kinds = getattr(self._text, "layer_types", None) or ()
        return self.num_layers - sum(kind in NO_MEMORY_LAYERS for kind in kinds)

    @property
    def layers(self) -> list[torch.nn.Module]:
        """Return the decoder layers. Raises `UserError` if they are not found."""
        return list(cast(torch.nn.ModuleList, self.module.get_submodule(self.layers_path)))

    @property
    def text_config(self) -> Any:
        return self._text

    @property
    def hidden_size(self) -> int:
        return int(self._text.hidden_size)

    @property
    def decoder(self) -> torch.nn.Module:
        """Return the module that holds the decoder layers; its output is the last hidden state. Raises as
        `layers`."""
        decoder: torch.nn.Module = self.module.get_submodule(self.layers_path.rpartition(".")[0])
        return decoder

    @cached_property
    def layers_path(self) -> str:
        """Return where the decoder layers lie in `module`. Raises as `layers`."""
        for path, module in self.module.named_modules():
            if isinstance(module, torch.nn.ModuleList) and len(module) == self.num_layers:
                return str(path)
        raise UserError(
            f"the decoder layers of model '{self.name}' are not found; serve it without --drafter"
        )

    def plain_logits(self, tokens: Sequence[int], last: int) -> Tensor:
        """Return logits float32 [last, V] of a sequence's last rows, by transformers alone, in `plain`."""
        ids = torch.tensor([list(tokens)], device=self.device)
        kept = {"logits_to_keep": last} if self._keeps_rows else {}
        logits: Tensor = self.module(input_ids=ids, use_cache=False, **kept).logits[0, -last:]
        return logits.float()

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Give the model transformers' eager attention back until the block ends."""
        self._use_attention("eager")
        try:
            with self._apart():
                yield
        finally:
            self._use_attention(ATTENTION)

    def _apart(self) -> AbstractContextManager[None]:
        return nullcontext() if self._merged is None else self._merged.off()

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Compute in float32 until the block ends, with the same weights."""
        with self._apart(), float32_inside(self.module, self.num_layers):
            yield

    @contextmanager
    def windows_at_most(self, limit: int) -> Iterator[None]:
        """Shrink longer sliding windows to `limit` until the block ends: for short probes."""
        holders: list[Any] = [self._text, *self.module.modules()]
        widths = [(holder, getattr(holder, "sliding_window", None)) for holder in holders]
        wide = [(holder, width) for holder, width in widths if isinstance(width, int) and width > limit]
        for holder, _ in wide:
            holder.sliding_window = limit
        try:
            yield
        finally:
            for holder, width in wide:
                holder.sliding_window = width

    def compute_experts_row_by_row(self) -> None:
        """Give each row its experts' weights instead of each expert its rows, whose number the step decides.

        Nothing changes for a model without experts. Raises `UserError` if transformers cannot do so.
        """
        if not any(getattr(self._text, name, 0) for name in NUM_EXPERTS):
            return
        self.module.set_experts_implementation("batched_mm")
        if self._text._experts_implementation != "batched_mm":
            raise UserError(
                f"model '{self.name}' cannot be served with --deterministic: its experts compute together "
                "the rows that a step has for them, so the bits of a row depend on the step."
            )

    def _use_attention(self, kind: str) -> None:
        """transformers only logs a warning where it refuses, hence the look at what it did."""
        self.module.set_attn_implementation(kind)
        if self._text._attn_implementation != kind:
            raise Refusal(
                self.name, f"{type(self.module).__name__} does not use transformers' attention interface"
            )


def load_target(
    source: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    with_tokenizer: bool = True,
    num_processes: int = 1,
) -> TargetModel:
    """Load a model from a folder or a Hugging Face hub id; safetensors only, and never code from the model.

    `dtype` is "auto" or a key of `DTYPES`. "auto" is the stored one on a GPU. On a CPU it is float32, unless
    the model is stored in bfloat16, has `SMALL` parameters and the processor computes in bfloat16. `device`
    is a name of torch ("cpu", "cuda:0"). Each of `num_processes` joined processes (`parallel.join`) gets its
    part, on the device that it was given there. Raises `UserError` that says what to change.
    """
    where = _device(device)
    kind = torch_dtype(dtype)
    place = place_of(source)
    config = loading(source, lambda: AutoConfig.from_pretrained(place, trust_remote_code=False))
    refuse_config(source, config)
    is_quantized = getattr(config, "quantization_config", None) is not None
    if num_processes > 1:
        refuse_division(source, config, num_processes)
    if Path(place).is_dir():
        check_weights(source, Path(place))
    places = None if num_processes > 1 else device_map(where)
    if dtype == "auto" and where.type == "cpu":
        stays = config.dtype == torch.bfloat16 and computes_bfloat16() and not is_quantized
        kind = "auto" if stays and num_processes == 1 else torch.float32
    model = loading(source, lambda: _load_weights(source, place, kind, num_processes, places))
    if kind == "auto" and where.type == "cpu" and model.num_parameters() < SMALL:
        torch.nn.Module.float(model)
    tokenizer: Any = None
    if with_tokenizer:
        tokenizer = loading(source, lambda: AutoTokenizer.from_pretrained(place, trust_remote_code=False))
    if num_processes == 1:
        torch.nn.Module.to(model, where)
    if is_quantized:
        # compressed-tensors unpacks weights at the first forward, and fails if a module was changed before.
        tokens = torch.zeros((1, 1), dtype=torch.int64, device=where)
        with torch.no_grad():
            loading(source, lambda: model(tokens, use_cache=False))
    return TargetModel(source, model, tokenizer)


def device_map(device: torch.device) -> dict[str, torch.device] | None:
    """Return where transformers reads weights to, so that a GPU's never lie in the host's memory. None is
    the host; transformers reads elsewhere only with accelerate."""
    return {"": device} if device.type == "cuda" and find_spec("accelerate") is not None else None


def _load_weights(
    source: str,
    place: str,
    dtype: torch.dtype | str,
    num_processes: int,
    places: dict[str, torch.device] | None,
) -> PreTrainedModel:
    """Load all weights: transformers fills missing ones with random numbers and a warning."""
    if not sys.stderr.isatty():
        hf_logging.disable_progress_bar()  # a bar is for people who watch
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        place,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        attn_implementation="eager",
        output_loading_info=True,
        device_map=places,
        distributed_config=DistributedConfig(tp_size=num_processes) if num_processes > 1 else None,
    )
    model, report = loaded
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise UserError(
            f"the weights of '{source}' are incomplete: {len(lacking)} tensors such as {lacking[0]}"
        )
    if num_processes > 1:
        multiply_directly(model)
    return cast(PreTrainedModel, model)


def multiply_directly(model: Any) -> None:
    """Let the linear layers of a divided model compute on their part of the weight as on any tensor.

    transformers wraps each of them, unpacks its weight and looks at layouts at every call. Only layers whose
    plan says which part of the sum they hold change; head, embeddings and experts keep their wrappers.
    """
    for path, module in model.named_modules():
        style = model.tp_plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", path))
        if type(module) is not torch.nn.Linear or style not in ("colwise", "rowwise"):
            continue
        weight = module.weight
        if module is model.get_output_embeddings() or not isinstance(weight, DTensor):
            continue
        for name, whole in module.named_parameters(recurse=False):
            local = whole.to_local() if isinstance(whole, DTensor) else whole
            setattr(module, name, torch.nn.Parameter(local, requires_grad=False))
        del module.forward  # the wrapper; what is left is the class's own
        if style == "rowwise":
            sum_parts = partial(_sum_of_parts, module, weight.device_mesh.get_group())
            module.forward = sum_parts  # type: ignore[method-assign]


def _sum_of_parts(layer: torch.nn.Linear, group: dist.ProcessGroup, hidden: Tensor) -> Tensor:
    """Return the layer's output from each process's part of `hidden`. The bias is whole everywhere."""
    total = functional.linear(hidden, layer.weight)
    dist.all_reduce(total, group=group)
    bias: Tensor | None = layer.bias
    return total if bias is None else total + bias


def torch_dtype(name: str) -> torch.dtype | str:
    """Return the dtype that transformers gets for a name. Raises `UserError` for an unknown name."""
    if name == "auto":
        return name
    if name not in DTYPES:
        raise UserError(f"dtype is '{name}'; it must be auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device '{name}' is unknown to torch; use cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device '{name}' was asked for, and torch sees no CUDA device here; use cpu")
    return device
