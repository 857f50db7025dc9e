"""Holds a draft's weights in torch, read from a GGUF file, and writes them as GGUF again.

The file gives the names, the tokenizer and all else that llama.cpp reads. transformers gives the layers. A
weight may differ between the two by the order of its rows and by a constant. Both are found by comparing the
values, so a weight that is written is right or refused.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parametrize

from common.errors import UserError
from common.llama.library import library
from training.gguf_files import copy_fields, finish

FloatArray = NDArray[np.float32]

LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # a layer's number in a name
FILE_TYPES = {
    kind.name.removeprefix("MOSTLY_").removeprefix("ALL_"): kind.value for kind in gguf.LlamaFileType
}


def file_type(kind: str) -> int:
    """Return llama.cpp's number of a type of `quantize`, such as Q8_0 or Q4_K_M. Raises `UserError`."""
    if kind not in FILE_TYPES:
        raise UserError(f"llama.cpp has no type {kind}; known are {', '.join(FILE_TYPES)}")
    return FILE_TYPES[kind]


class LowRank(nn.Module):
    """Adds a product of two small matrices to a weight (LoRA: Hu et al. 2021, arXiv 2106.09685)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


@dataclass(frozen=True, slots=True)
class Relation:
    """Tells how a weight of the file becomes one of the module: rows in another order, then a sum."""

    num_heads: int = 0  # whose rotary rows are pairs in the file and halves in the module; 0: equal
    plus: float = 0.0

    def fits(self, weight: FloatArray) -> bool:
        """Tell whether a weight's rows can be pairs of these heads."""
        return not self.num_heads or len(weight) % (2 * self.num_heads) == 0

    def to_module(self, weight: FloatArray) -> FloatArray:
        if self.num_heads:
            pairs = weight.reshape(self.num_heads, -1, 2, *weight.shape[1:])
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        return weight + np.float32(self.plus)

    def to_file(self, weight: FloatArray) -> FloatArray:
        weight = weight - np.float32(self.plus)
        if self.num_heads:
            halves = weight.reshape(self.num_heads, 2, -1, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        return np.ascontiguousarray(weight)


class DraftWeights:
    """Holds a draft as transformers' model in float32.

    Args: path: GGUF file. Raises `UserError` for an architecture that transformers does not read.
    """

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.path = path
        try:
            self.module: Any = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32
            )
        except (ValueError, NotImplementedError, OSError) as error:
            raise UserError(
                f"{path} cannot be trained: {error}; training needs a GGUF file of an architecture that "
                "transformers reads, such as llama, qwen2, qwen3 or gemma3"
            ) from error
        self._rows = torch.empty(0, dtype=torch.bool)
        self.module.get_output_embeddings().register_forward_pre_hook(self._only_rows)
        self._reader = gguf.GGUFReader(path)
        self._architecture: str = self._reader.fields["general.architecture"].contents()
        architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self._architecture)
        self._names = gguf.get_tensor_name_map(architecture, self.module.config.num_hidden_layers)
        self._relations = dict(self._compared())

    def logits(self, tokens: Tensor, rows: Tensor, **more: Tensor) -> Tensor:
        """Return logits [N, V] of those rows, bool [B, T], of tokens int64 [B, T]. No other rows pass through
        the output layer, which is most of the work with a large vocabulary. The module takes `more`, too."""
        self._rows = rows
        logits: Tensor = self.module(input_ids=tokens, use_cache=False, **more).logits
        return logits[0]

    def _only_rows(self, _: nn.Module, hidden: tuple[Tensor]) -> tuple[Tensor]:
        return (hidden[0][self._rows].unsqueeze(0),)

    def check_layers(self, layers: list[int]) -> None:
        """Raise `UserError` if the draft lacks one of the layers."""
        last = self.module.config.num_hidden_layers - 1
        if not all(0 <= layer <= last for layer in layers):
            raise UserError(f"layers {layers} were asked of a draft with layers 0 to {last}")

    def keep_layers(self, layers: list[int]) -> None:
        """Drop all other layers, which `check_layers` has allowed."""
        body, config = self.module.model, self.module.config
        body.layers = nn.ModuleList([body.layers[layer] for layer in layers])
        for place, layer in enumerate(body.layers):
            layer.self_attn.layer_idx = place
        config.num_hidden_layers = len(layers)
        if getattr(config, "layer_types", None):
            config.layer_types = [config.layer_types[layer] for layer in layers]

    def add_low_rank(self, rank: int) -> None:
        """Train a product of rank `rank` beside each matrix of the layers, and nothing else."""
        self.module.requires_grad_(False)
        for _, layer in self._matrices():
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))

    def write(self, out: Path, kind: str, fields: Mapping[str, str] | None = None) -> None:
        """Write all weights, low-rank products added, with the file's tokenizer. Raises `UserError`.

        Args: kind: as in `file_type`; fields: further metadata.
        """
        number = file_type(kind)
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            whole, part = Path(folder) / "whole.gguf", Path(folder) / "part.gguf"
            self._write_whole(whole, fields or {})
            _quantize(whole, part, number)
            part.replace(out)

    def write_adapter(self, out: Path) -> None:
        """Write the low-rank products as an adapter, which llama.cpp adds to the draft's file as it runs."""
        part = out.with_name(f".{out.name}")  # a device that looks into the folder sees whole files only
        writer = gguf.GGUFWriter(part, self._architecture)
        writer.add_string("general.type", "adapter")
        writer.add_string("adapter.type", "lora")
        rank = 0
        for module_name, layer in self._matrices():
            product: Any = layer.parametrizations.weight[0]  # type: ignore[union-attr,index]
            rank, name = len(product.a), self._file_name(f"{module_name}.weight")
            relation = self._relations[_kind_of(name)]
            writer.add_tensor(f"{name}.lora_a", _numpy(product.a))
            writer.add_tensor(f"{name}.lora_b", Relation(relation.num_heads).to_file(_numpy(product.b)))
        writer.add_float32("adapter.lora.alpha", float(rank))  # llama.cpp multiplies by alpha / rank
        finish(writer)
        part.replace(out)

    def _matrices(self) -> list[tuple[str, nn.Linear]]:
        """Return the linear layers of the decoder layers with their names."""
        modules = self.module.named_modules()
        return [(name, each) for name, each in modules if isinstance(each, nn.Linear) and LAYER.search(name)]

    def _file_name(self, module_name: str) -> str:
        """Return the file's name of a weight. Raises `UserError` if it has none."""
        stem, _, suffix = module_name.rpartition(".")
        name = self._names.get_name(stem)
        if name is None:
            raise UserError(f"{self.path}: a GGUF file has no place for the weight {module_name}")
        return f"{name}.{suffix}"

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights, low-rank products added, by their names without parametrizations."""
        for name, weight in self.module.named_parameters():
            if ".parametrizations." not in name:
                yield name, weight
        for name, layer in self._matrices():
            if parametrize.is_parametrized(layer):
                yield f"{name}.weight", layer.weight

    def _compared(self) -> Iterator[tuple[str, Relation]]:
        held = {tensor.name: tensor for tensor in self._reader.tensors}
        config = self.module.config
        ways = (
            Relation(),
            Relation(config.num_attention_heads),
            Relation(config.num_key_value_heads),
            Relation(plus=-1.0),
        )
        for module_name, weight in self._weights():
            name, own = self._file_name(module_name), _numpy(weight)
            values = gguf.quants.dequantize(held[name].data, held[name].tensor_type).reshape(own.shape)
            fitting = (way for way in ways if way.fits(values))
            relation = next((way for way in fitting if np.array_equal(way.to_module(values), own)), None)
            if relation is None:
                raise UserError(
                    f"{self.path}: transformers reads the weight {name} in a way that cannot be written"
                )
            yield _kind_of(name), relation

    def _write_whole(self, path: Path, fields: Mapping[str, str]) -> None:
        writer = gguf.GGUFWriter(path, self._architecture)
        layers = {f"{self._architecture}.block_count": self.module.config.num_hidden_layers}
        copy_fields(self._reader, writer, {"general.file_type": None, **layers, **dict.fromkeys(fields)})
        for name, value in fields.items():
            writer.add_string(name, value)
        written = set[str]()
        for module_name, weight in self._weights():
            name = self._file_name(module_name)
            written.add(_kind_of(name))
            writer.add_tensor(name, self._relations[_kind_of(name)].to_file(_numpy(weight)))
        for tensor in self._reader.tensors:
            if _kind_of(tensor.name) not in written:  # such as the frequencies of a rotary embedding
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        finish(writer)


def _kind_of(name: str) -> str:
    """Return a weight's name without its layer's number."""
    return LAYER.sub("*", name)


def _numpy(weight: Tensor) -> FloatArray:
    array: FloatArray = weight.detach().float().cpu().contiguous().numpy()
    return array


def _quantize(whole: Path, out: Path, file_type: int) -> None:
    calls = library()
    params = calls.llama_model_quantize_default_params()
    params.ftype = file_type
    code = calls.llama_model_quantize(str(whole).encode(), str(out).encode(), ctypes.byref(params))
    if code:
        raise UserError(f"llama.cpp cannot write {out} in this type (code {code}); Q8_0 takes every shape")
