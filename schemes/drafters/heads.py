"""Small heads on the target, trained for it, and their files.

A file holds only what is new: embeddings, final norm and output head are the target's. Its metadata name the
target by vocabulary, width and number of layers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_layers import MtpModel

from cloud_verifier.engine.attention.backend import running_step
from cloud_verifier.engine.model.checkpoint import loading
from cloud_verifier.engine.model.transformers_adapter import ATTENTION, TargetModel
from common.errors import UserError
from common.vocabulary import Vocabulary
from schemes.drafters.drafter import MOST_LEVELS, Drafted, DraftModel, DraftRows
from schemes.drafters.newer_heads import NewerHeads
from schemes.drafters.other_layers import stand_in, with_layers, without_layers

FORMAT = "forerun heads 1"
NORM_EPS = 1e-6

GAMMA = 0.75
"""Least chance of a token with which its row leaves at an exit, unless `exits:GAMMA:FILE` says another."""

MAX_DEPTH = 64
"""Levels of one file's heads. No draft uses more than `MOST_LEVELS`, and Medusa's take memory for each."""


def keep_features(target: TargetModel) -> None:
    """Keep the target's last hidden state of each row at its slot, from now on."""
    target.decoder.register_forward_hook(lambda _module, _inputs, output: write_features(output[0][0]))


class LastHidden:
    """Keeps the last output of a decoder: hidden states [B, T, H] behind the final norm."""

    def __init__(self, decoder: nn.Module) -> None:
        self.states = torch.empty(0)
        decoder.register_forward_hook(self._note)

    def _note(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self.states = output[0]


def write_features(features: Tensor) -> None:
    """Keep features [T, F] of the rows of the step that runs, if any, at the rows' slots."""
    if (step := running_step()) is not None:
        step.kv.write_features(step.slots, features)


def logits_of(target: TargetModel, hidden: Tensor) -> Tensor:
    """Return logits float32 [..., V] of last hidden states, without a family's own scaling."""
    logits: Tensor = target.module.get_output_embeddings()(hidden)
    return logits.float()


@dataclass(frozen=True, slots=True)
class PredictionParts:
    """Holds the modules of a multi-token prediction module that a checkpoint brings."""

    embedding_norm: nn.Module
    feature_norm: nn.Module
    joined: nn.Module  # [.., 2H] -> [.., H]
    layer: nn.Module
    final_norm: nn.Module
    features_first: bool  # the order of what is joined


def prediction_parts(target: TargetModel) -> PredictionParts:
    """Load the first multi-token prediction module of the target's folder or hub id, by transformers' own
    classes. Raises `UserError` if there is none, or none that transformers knows."""
    text = target.text_config
    if not getattr(text, "num_mtp_layers", None):
        raise UserError(
            f"--drafter mtp is not possible: '{target.name}' names no multi-token prediction module"
        )
    whole: Any = target.module
    module: Any = loading(target.name, lambda: MtpModel.from_pretrained(whole))
    kinds = [getattr(config, "layer_types", None) or [""] for config in (module.config, text)]
    if kinds[0][0] != kinds[1][0]:
        raise UserError(
            f"--drafter mtp is not possible: the module of '{target.name}' has {kinds[0][0]}, unlike the "
            "model's first layer; train heads with `forerun heads train`"
        )
    module.set_attn_implementation(ATTENTION)
    first = module.layers[0]
    final_norm = module.shared_post_norm if module.use_shared_post_norm else first.post_norm
    return PredictionParts(
        first.enorm,
        first.hnorm,
        first.eh_proj,
        first.mtp_block,
        nn.Identity() if final_norm is None else final_norm,
        features_first=bool(getattr(module.config, "mtp_hidden_states_first", False)),
    )


def checkpoint_head(_source: str, target: TargetModel, _vocabulary: Vocabulary) -> RecurrentHead:
    """Return the multi-token prediction module of the target's own checkpoint, which is run once per level.
    Raises `UserError` if it has none."""
    parts = prediction_parts(target)
    keep_features(target)
    return RecurrentHead(target, MOST_LEVELS, parts).eval().requires_grad_(False)


def _new_layer(target: TargetModel) -> nn.Module:
    """Make another decoder layer like the target's first, with the weights of the last one where these fit,
    else random ones."""
    kind: Any = type(target.layers[0])
    layer: nn.Module = kind(target.text_config, layer_idx=0)
    weights, own = target.layers[-1].state_dict(), layer.state_dict()
    if {name: each.shape for name, each in weights.items()} == {
        name: each.shape for name, each in own.items()
    }:
        layer.load_state_dict(weights)
    return layer.to(target.device, target.dtype).eval()


class RecurrentHead(nn.Module, DraftModel):
    """One more decoder layer of the target's own class, fed with a token and the hidden state before it.

    This is the form of EAGLE (Li et al. 2024, arXiv 2401.15077) and of multi-token prediction modules
    (DeepSeek-V3, 2.2): both inputs are normed, joined and projected to the target's width. The layer's
    output, after a final norm, stands for the target's hidden state one level below. The target's
    embeddings and head are shared, and its final norm, unless there are parts of a checkpoint.
    """

    kind = "recurrent"
    first_position = 1
    has_own_kv = True

    def __init__(self, target: TargetModel, depth: int, parts: PredictionParts | None = None) -> None:
        super().__init__()
        width = target.hidden_size
        self.depth = depth
        if parts is None:
            self.embedding_norm: nn.Module = nn.RMSNorm(width, eps=NORM_EPS)
            self.feature_norm: nn.Module = nn.RMSNorm(width, eps=NORM_EPS)
            self.joined: nn.Module = nn.Linear(2 * width, width, bias=False)
            self.layer = _new_layer(target)
            self._target = with_layers(target, [self.layer])
        else:
            self.embedding_norm, self.feature_norm = parts.embedding_norm, parts.feature_norm
            self.joined, self.layer = parts.joined, parts.layer
            self._target = with_layers(target, [self.layer], parts.final_norm)
        self._features_first = parts is not None and parts.features_first
        self.to(target.device, target.dtype)
        self._hidden = LastHidden(self._target.decoder)

    def joined_inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return the layer's input [..., H] of tokens and of the features [..., H] before them."""
        parts = [
            self.embedding_norm(self._target.module.get_input_embeddings()(tokens)),
            self.feature_norm(features),
        ]
        joined: Tensor = self.joined(torch.cat(parts[::-1] if self._features_first else parts, dim=-1))
        return joined

    def forward(self, rows: DraftRows) -> Drafted:
        assert rows.features is not None
        inputs = self.joined_inputs(rows.tokens, rows.features)
        logits = self._target.forward(inputs[None], rows.positions[None], rows.outputs, embedded=True)
        return Drafted(logits, self._hidden.states[0].index_select(0, rows.outputs))

    def read(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return hidden states [B, T, H] of whole texts [B, T], by the attention in force."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        inputs = self.joined_inputs(tokens, features)
        self._target.decoder(inputs_embeds=inputs, position_ids=positions, use_cache=False)
        return self._hidden.states


class ResidualBlocks(nn.Module):
    """Holds blocks that turn a hidden state of the target into another one, in front of its head."""

    def __init__(self, target: TargetModel, depth: int) -> None:
        super().__init__()
        self.depth = depth
        width = target.hidden_size
        self.weights = nn.Parameter(torch.zeros(depth, width, width))
        self.biases = nn.Parameter(torch.zeros(depth, width))
        self.to(target.device, target.dtype)

    def turned(self, features: Tensor, number: int) -> Tensor:
        """Return what block `number`, counted from 1, makes of hidden states [..., H]."""
        inner = functional.linear(features, self.weights[number - 1], self.biases[number - 1])
        return features + functional.silu(inner)


class MedusaHeads(ResidualBlocks, DraftModel):
    """One head for each level, on the target's last hidden state alone (Medusa: Cai et al. 2024, arXiv
    2401.10774; Stern et al. 2018).

    Head k is a residual block before the target's head; it says which token comes k places behind the tip,
    whatever lies between. So the nodes of a level have the same candidates, under the same noise, and one row
    a level is run for a tree of any width.
    """

    kind = "medusa"
    first_position = 1
    has_own_kv = False
    by_level = True

    def __init__(self, target: TargetModel, depth: int) -> None:
        super().__init__(target, depth)
        self._head = partial(logits_of, target)

    def forward(self, rows: DraftRows) -> Drafted:
        assert rows.features is not None
        features = rows.features.index_select(0, rows.outputs)
        return Drafted(self._head(self.turned(features, rows.level)), features)


class ExitHeads(ResidualBlocks, DraftModel):
    """Heads behind middle layers of the target, whose rows leave at the first head that is sure (AdaDecode:
    Wei et al. 2025, arXiv 2506.03700).

    Head k is a residual block before the target's norm and head, behind `exit_layers()[k - 1]` layers. A row
    leaves where its likeliest token has the chance `gamma` at temperature 1. Then the row of that token
    begins, and the target's next step runs the layers that are left of both, and those before once more.
    A row below one that left has KV of as many layers as that one, so it leaves there at the latest; the
    paper resumes the rows above with it. A row that is unsure at its last head guesses its followers and
    ends the guess; the paper's goes on to the last layer.
    """

    kind = "exit"
    first_position = 0
    has_own_kv = False

    def __init__(self, target: TargetModel, num_exits: int, gamma: float = GAMMA) -> None:
        if num_exits >= target.num_layers:
            raise UserError(
                f"{num_exits} exits are not possible: '{target.name}' has {target.num_layers} layers; take "
                "a smaller --depth"
            )
        super().__init__(target, num_exits)
        self.num_trained, self.depth, self.gamma = num_exits, MOST_LEVELS, gamma
        self._state = torch.empty(0)  # the hidden states behind the last exit that was reached
        places = exit_layers(target.num_layers, num_exits)
        spans = zip((0, *places[:-1]), places, strict=True)
        self._parts = [self._part(target, *span, number) for number, span in enumerate(spans, 1)]

    def _part(self, target: TargetModel, first: int, end: int, number: int) -> TargetModel:
        """Return the target with the layers from `first` to before `end` alone, which begin with the states
        before them and end with a head."""

        def begin(*_inputs: Any, **_more: Any) -> Tensor:
            return self._state

        def leave(hidden: Tensor, *_inputs: Any, **_more: Any) -> Tensor:
            self._state = hidden.detach()
            return self.turned(self._state, number)

        forwards = {first - 1: begin, end: leave}
        layers = enumerate(without_layers(target, {*range(first), *range(end, target.num_layers)}).layers)
        return with_layers(
            target, [stand_in(layer, forwards[at]) if at in forwards else layer for at, layer in layers]
        )

    def forward(self, rows: DraftRows) -> Drafted:
        """Run rows whose features hold the number of exits that have written KV of the rows above."""
        reach = torch.full_like(rows.tokens, self.num_trained)
        if rows.level > 1 and rows.features is not None:
            reach = rows.features[:, 0].long()
        has_left = torch.zeros_like(rows.tokens, dtype=torch.bool)
        logits = torch.empty(0)
        for number, part in enumerate(self._parts, 1):
            found = part.forward(rows.tokens[None], rows.positions[None], rows.outputs)
            stays = ~has_left & (number <= reach)
            logits = found if number == 1 else torch.where(stays[:, None], found, logits)
            leaves = stays & (found.softmax(dim=-1).amax(dim=-1) >= self.gamma)
            reach, has_left = reach.masked_fill(leaves, number), has_left | leaves
            if bool((has_left | (reach <= number)).all()):
                break
        return Drafted(logits, reach[:, None].float(), ~has_left)

    def read(self, tokens: Tensor) -> Iterator[Tensor]:
        """Yield what stands for the last hidden state of whole texts [B, T] at each exit, [B, T, H]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        for part in self._parts:
            with part.plain():
                yield part.decoder(input_ids=tokens, position_ids=positions, use_cache=False)[0]


def exit_layers(num_layers: int, num_exits: int) -> tuple[int, ...]:
    """Return the numbers of layers before each exit, spread evenly."""
    return tuple(round(num_layers * number / (num_exits + 1)) for number in range(1, num_exits + 1))


class PassRows(nn.Module, DraftModel):
    """Learnt embeddings that stand for the next tokens, in rows of the target below the tip (PaSS: Monea et
    al. 2023, arXiv 2311.13581).

    One forward of the whole target reads the tip and `num_ahead` rows below it. What follows the tip is then
    certain, and what follows row k is a guess of the token k places further, whatever lies between. The
    target's next step decides, so a text takes two forwards a step, as in the paper. Rows in the verifier's
    own step would need but one, and `num_ahead` rows below each of its nodes. All guessed nodes of a level
    have the same candidates.
    """

    kind = "pass"
    first_position = 0
    has_own_kv = False
    by_level = True

    def __init__(self, target: TargetModel, num_rows: int) -> None:
        super().__init__()
        self.num_trained = self.num_ahead = num_rows
        self.depth = 1 + num_rows
        mean = target.module.get_input_embeddings().weight.detach().float().mean(dim=0)
        self.embeddings = nn.ParameterList(mean.clone() for _ in range(num_rows))
        self.to(target.device, target.dtype)
        self._target = with_layers(target, target.layers)
        self._hidden = LastHidden(self._target.decoder)
        self._head = partial(logits_of, target)

    def forward(self, rows: DraftRows) -> Drafted:
        """Run tips, each with its rows below it. At levels below, the features are the hidden states of these
        rows, side by side."""
        if rows.level > 1:
            assert rows.features is not None
            features = rows.features.index_select(0, rows.outputs)
            width = features.shape[1] // self.num_ahead
            first = width * (rows.level - 2)
            return Drafted(self._head(features[:, first : first + width]), features)
        size = (len(rows.outputs), 1 + self.num_ahead, -1)
        embedded = self._target.module.get_input_embeddings()(rows.tokens).reshape(size).clone()
        embedded[:, 1:] = torch.stack(tuple(self.embeddings))
        inputs = embedded.flatten(0, 1)[None]
        logits = self._target.forward(inputs, rows.positions[None], rows.outputs, embedded=True)
        return Drafted(logits, self._hidden.states.reshape(size)[:, 1:].flatten(1))

    def read(self, tokens: Tensor, number: int) -> Tensor:
        """Return hidden states [B, T, H] of whole texts [B, T], by the attention in force, or of the rows
        of a number from 1 on in the place of the texts' own."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        embedded = self._target.module.get_input_embeddings()(tokens)
        if number:
            embedded = self.embeddings[number - 1].expand_as(embedded)
        self._target.decoder(inputs_embeds=embedded, position_ids=positions, use_cache=False)
        return self._hidden.states


Heads = RecurrentHead | MedusaHeads | ExitHeads | PassRows
KINDS: dict[str, type[Heads]] = {
    each.kind: each for each in (RecurrentHead, MedusaHeads, ExitHeads, PassRows)
}


@dataclass(frozen=True, slots=True)
class HeadsLabel:
    """Holds a file's metadata: what the heads are, and the target that they were trained for."""

    kind: str
    depth: int  # levels that they were trained for, exits, or rows below a tip
    vocabulary: str  # fingerprint of the target's token table, hex
    hidden_size: int
    num_layers: int

    def __post_init__(self) -> None:
        if not 1 <= self.depth <= MAX_DEPTH:
            raise UserError(f"the depth of heads is {self.depth}; it must be from 1 to {MAX_DEPTH}")

    @classmethod
    def of(cls, kind: str, depth: int, target: TargetModel, fingerprint: bytes) -> HeadsLabel:
        return cls(kind, depth, fingerprint.hex(), target.hidden_size, target.num_layers)


def save_heads(heads: Heads, label: HeadsLabel, path: Path) -> None:
    """Write a file of heads in bfloat16, whole or not at all."""
    weights = {name: tensor.detach().bfloat16().contiguous() for name, tensor in heads.state_dict().items()}
    told = {name: str(value) for name, value in asdict(label).items()}
    partial = path.with_name(path.name + ".part")
    save_file(weights, partial, {"format": FORMAT, **told})
    partial.replace(path)


def load_heads(source: str, target: TargetModel, vocabulary: Vocabulary) -> Heads | NewerHeads:
    """Load heads of `forerun heads train` from FILE or heads:FILE, or from heads:FOLDER those that were
    in force last, else the newest, and all that follow there. Raises `UserError` as `read_heads`, and for a
    folder without heads."""
    place = Path(source.removeprefix("heads:")).expanduser()
    served: Heads | NewerHeads
    if place.is_dir():
        served = NewerHeads(place, lambda path: read_heads(path, target, vocabulary))
    else:
        served = read_heads(place, target, vocabulary)
    if served.first_position:
        keep_features(target)
    return served


def read_heads(path: Path, target: TargetModel, vocabulary: Vocabulary) -> Heads:
    """Read a file of heads. Raises `UserError` if they are of another target, or cannot be used."""
    try:
        with safe_open(path, "pt") as file:
            label = _label(path, file.metadata() or {})
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise UserError(f"--drafter {path} cannot be read: {error}") from error
    for name, ours in asdict(HeadsLabel.of(label.kind, label.depth, target, vocabulary.fingerprint)).items():
        theirs = getattr(label, name)
        if theirs != ours:
            raise UserError(
                f"--drafter {path} was trained for another target: its {name} is {theirs}, and that of "
                f"'{target.name}' is {ours}; train heads with `forerun heads train --model {target.name}`"
            )
    heads = KINDS[label.kind](target, label.depth)
    wrong = [
        name
        for name, own in heads.state_dict().items()
        if name not in weights or weights[name].shape != own.shape or not weights[name].isfinite().all()
    ]
    if wrong or len(weights) != len(heads.state_dict()):
        raise UserError(
            f"--drafter {path} does not hold the weights of its {label.kind} heads of depth {label.depth}: "
            f"{wrong[0] if wrong else 'there are others'}; train or download the file anew"
        )
    heads.load_state_dict(weights)
    return heads.eval().requires_grad_(False)


def load_exits(source: str, target: TargetModel, vocabulary: Vocabulary) -> ExitHeads:
    """Load exit heads with their threshold of `exits:GAMMA:FILE`. Raises `UserError` as `load_heads`, and for
    another threshold."""
    _, gamma, path = (*source.split(":", 2), "", "")[:3]
    is_chance = gamma.replace(".", "", 1).isdecimal() and 0.0 < float(gamma) <= 1.0
    heads = read_heads(Path(path).expanduser(), target, vocabulary) if is_chance and path else None
    if not isinstance(heads, ExitHeads):
        raise UserError(
            f"--drafter is {source!r}; it must be exits:GAMMA:FILE with a chance GAMMA up to 1 and a file "
            "of `forerun heads train --kind exit`"
        )
    heads.gamma = float(gamma)
    return heads


def _label(path: Path, told: dict[str, str]) -> HeadsLabel:
    with contextlib.suppress(KeyError, ValueError):
        label = HeadsLabel(
            told["kind"],
            int(told["depth"]),
            told["vocabulary"],
            int(told["hidden_size"]),
            int(told["num_layers"]),
        )
        if told.get("format") == FORMAT and label.kind in KINDS:
            return label
    raise UserError(f"--drafter {path} is no file of `forerun heads train`, or of another version")
