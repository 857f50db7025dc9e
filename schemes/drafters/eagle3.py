"""Reads EAGLE-3 heads as published (Li et al. 2025, arXiv 2503.01840), in the layouts of SafeAILab/EAGLE and
of vllm-project/speculators, both Apache-2.0.

The head sees the target's hidden states at three depths, joined to one feature. Its first decoder layer
attends over the token's embedding and the feature side by side; its output is the feature of the level below.
Its own output head knows the frequent tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from cloud_verifier.engine.model.checkpoint import loading, place_of, read_settings
from cloud_verifier.engine.model.transformers_adapter import ATTENTION, TargetModel
from common.errors import UserError
from common.vocabulary import Vocabulary
from schemes.drafters.drafter import MOST_LEVELS, Drafted, DraftModel, DraftRows
from schemes.drafters.heads import write_features

Settings = Mapping[str, Any]
"""A parsed config.json."""

IGNORED = ("t2d", "verifier_lm_head.", "verifier_norm.")
"""Weights that are the target's, or follow from others."""

RENAMED = (
    ("midlayer.", "layers.0."),
    ("layers.0.input_layernorm.", "layers.0.input_layernorm.embedding_norm."),
    ("layers.0.hidden_norm.", "layers.0.input_layernorm.feature_norm."),
    ("layers.", "decoder.layers."),
)
"""Beginnings of published names, and those of ours, applied in this order."""


@dataclass(frozen=True, slots=True)
class Eagle3Shape:
    """Holds what config.json says of a head."""

    decoder: Settings  # of its decoder layers, as transformers names them
    vocab_size: int  # tokens that it knows
    sources: tuple[int, ...]  # the target's layers whose inputs are its features
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def of(cls, settings: Settings, num_layers: int) -> Eagle3Shape:
        """Read either layout. `num_layers` is the target's. Raises `KeyError` where a setting lacks."""
        decoder = settings.get("transformer_layer_config", settings)
        own = settings.get("eagle_config") or {}
        name = "eagle_aux_hidden_state_layer_ids"
        sources = settings.get(name) or own.get(name) or (2, num_layers // 2, num_layers - 3)
        flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        return cls(
            decoder,
            int(settings["draft_vocab_size"]),
            tuple(sources),
            **{flag: bool(settings.get(flag)) for flag in flags},
        )


def _new_decoder(settings: Settings) -> nn.Module:
    """Make random decoder layers of transformers' own class, with our attention and without embeddings.
    Raises `ValueError` for a family that transformers lacks."""
    config: Any = AutoConfig.for_model(**{**settings, "vocab_size": 1})
    decoder: Any = AutoModel.from_config(config, attn_implementation="eager")
    decoder.set_attn_implementation(ATTENTION)
    decoder.embed_tokens = None
    return cast(nn.Module, decoder)


class _JoinedNorms(nn.Module):
    """Stands before the first layer's attention: gives it normed embeddings beside normed features."""

    def __init__(self, embedding_norm: nn.Module, feature_norm: nn.Module, is_normed: bool) -> None:
        super().__init__()
        self.embedding_norm = embedding_norm
        self.feature_norm = feature_norm
        self._is_normed = is_normed  # the features are, when they come here
        self.embeddings = torch.empty(0)  # of the rows that run

    def residual(self, features: Tensor) -> Tensor:
        """Return what the first layer adds to."""
        residual: Tensor = self.feature_norm(features) if self._is_normed else features
        return residual

    def forward(self, features: Tensor) -> Tensor:
        normed = features if self._is_normed else self.feature_norm(features)
        return torch.cat((self.embedding_norm(self.embeddings), normed), dim=-1)


class Eagle3Head(nn.Module, DraftModel):
    """One published head. Its modules' names are the published ones, but for `RENAMED`."""

    depth = MOST_LEVELS
    first_position = 1
    has_own_kv = True

    def __init__(self, shape: Eagle3Shape, target: TargetModel, has_embeddings: bool) -> None:
        super().__init__()
        self.decoder = _new_decoder(shape.decoder)
        layers = self.decoder.get_submodule("layers")
        self.norm: nn.Module = self.decoder.get_submodule("norm")
        self.decoder.norm = nn.Identity()
        kind: Any = type(self.norm)
        config: Any = self.decoder.config
        eps, width = config.rms_norm_eps, config.hidden_size
        joined = len(shape.sources) * target.hidden_size
        first: Any = layers.get_submodule("0")
        first.input_layernorm = _JoinedNorms(
            first.input_layernorm, kind(width, eps=eps), shape.norm_before_residual
        )
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = first.self_attn.get_submodule(name)
            wide = nn.Linear(2 * width, narrow.out_features, bias=narrow.bias is not None)
            setattr(first.self_attn, name, wide)
        self.input_norm = kind(joined, eps=eps) if shape.norm_before_fc else nn.Identity()
        norms = [kind(target.hidden_size, eps=eps) for _ in shape.sources] if shape.fc_norm else []
        self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(joined, width, bias=False)
        self.lm_head = nn.Linear(width, shape.vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(target.vocab_size, width) if has_embeddings else None
        self.register_buffer("d2t", torch.zeros(shape.vocab_size, dtype=torch.int64))
        self._norm_output = shape.norm_output
        self._target = target

    def joined_states(self, states: list[Tensor]) -> Tensor:
        """Join the target's hidden states [T, H] at the head's depths to features [T, F]."""
        if self.fc_norm:
            states = [norm(state) for norm, state in zip(self.fc_norm, states, strict=True)]
        joined: Tensor = self.fc(self.input_norm(torch.cat(states, dim=-1)))
        return joined

    def forward(self, rows: DraftRows) -> Drafted:
        assert rows.features is not None
        embed = self.embed_tokens or self._target.module.get_input_embeddings()
        joined = self.decoder.get_submodule("layers.0.input_layernorm")
        assert isinstance(joined, _JoinedNorms)
        joined.embeddings = embed(rows.tokens)[None]
        inputs = joined.residual(rows.features)[None]
        positions = rows.positions[None]
        output = self.decoder(inputs_embeds=inputs, position_ids=positions, use_cache=False)
        hidden = output.last_hidden_state[0].index_select(0, rows.outputs)
        normed = self.norm(hidden)
        return Drafted(self._spread(self.lm_head(normed).float()), normed if self._norm_output else hidden)

    def _spread(self, logits: Tensor) -> Tensor:
        """Give logits [O, V of the head] the target's ids; tokens that the head does not know get none."""
        assert isinstance(self.d2t, Tensor)
        spread = logits.new_full((len(logits), self._target.vocab_size), -torch.inf)
        spread[:, torch.arange(logits.shape[1], device=logits.device) + self.d2t] = logits
        return spread


def load_eagle3(source: str, target: TargetModel, _vocabulary: Vocabulary) -> Eagle3Head:
    """Load a head from a folder or hub id, and let the target keep its features from now on. Raises
    `UserError` if it does not fit the target."""
    try:
        shape = Eagle3Shape.of(read_settings(source), target.num_layers)
        weights = _weights(_folder_of(source))
        head = Eagle3Head(shape, target, "embed_tokens.weight" in weights)
    except (KeyError, TypeError, ValueError, OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"--drafter {source} cannot be read as an EAGLE-3 head: {error}") from error
    if not all(1 <= index <= target.num_layers for index in shape.sources):
        raise UserError(
            f"--drafter {source} reads the inputs of the layers {list(shape.sources)} of its target, and "
            f"'{target.name}' has {target.num_layers} layers; it was trained for another target"
        )
    own = head.state_dict()
    if shape.vocab_size == target.vocab_size:
        weights.setdefault("d2t", own["d2t"])
    wrong = {name for name in own.keys() | weights.keys() if _shape(own, name) != _shape(weights, name)}
    fits = not wrong and int((weights["d2t"] + torch.arange(shape.vocab_size)).max()) < target.vocab_size
    if not fits or (head.embed_tokens is None and head.fc.out_features != target.hidden_size):
        raise UserError(
            f"--drafter {source} does not fit '{target.name}': "
            f"{min(wrong) if wrong else 'its vocabulary'} is not as it would be for this target"
        )
    head.load_state_dict(weights)
    _keep_joined(target, shape.sources, head)
    return head.to(target.device, target.dtype).eval().requires_grad_(False)


def _shape(weights: Mapping[str, Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(weights[name].shape) if name in weights else None


def _weights(folder: Path) -> dict[str, Tensor]:
    """Read a folder's weights under our names. Raises `UserError` if they are pickled only."""
    weights = dict[str, Tensor]()
    for path in sorted(folder.glob("*.safetensors")):
        weights |= load_file(path)
    if not weights:
        raise UserError(
            f"{folder} has no *.safetensors, and other files of weights are not read, since they can hold "
            "code; convert them, for example with the package `speculators`"
        )
    return {_renamed(name): each for name, each in weights.items() if not name.startswith(IGNORED)}


def _renamed(name: str) -> str:
    for theirs, ours in RENAMED:
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    return name


def _keep_joined(target: TargetModel, sources: tuple[int, ...], head: Eagle3Head) -> None:
    """Keep features of each of the target's rows at its slot, from now on. The input of layer i is the
    output of the one before."""
    states = dict[int, Tensor]()

    def keep(index: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        states[index] = (output[0] if isinstance(output, tuple) else output)[0]
        if index == max(sources):
            write_features(head.joined_states([states.pop(each) for each in sources]))

    for index in sources:
        target.layers[index - 1].register_forward_hook(partial(keep, index))


def _folder_of(source: str) -> Path:
    """Return the folder, or the one that a hub id is downloaded to. Raises `UserError` if there is none."""
    place = place_of(source)
    return Path(place if Path(place).is_dir() else loading(source, lambda: snapshot_download(place)))
