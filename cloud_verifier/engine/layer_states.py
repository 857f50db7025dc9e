"""Runs layers that keep a state in place of keys and values, and keeps their states.

Mamba, gated delta rules and short convolutions fold all earlier tokens into a state of fixed size. A state
cannot be cut back to an earlier token, so a step keeps the state after each row that its session may continue
from: each output row and the last row. A state has the KV slot of its row. The last prefix slot of
the session's next item names the row that was accepted, and the session's other states are dropped then.

The layers are transformers' own. Each call gets a cache of one layer, whose batch holds the states of several
rows. Rows run level by level: all sessions' tips together, then all their children, and so on. A tree costs
no more calls than a chain of its depth. Rows whose state is not needed, such as a prompt's, run in one call.

A state may be missing: it was dropped, because `num_states` are few. Its rows are then evaluated anew, from
the last row with a state on.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionLayer

from cloud_verifier.core.engine_protocol import IntArray, StepItem
from cloud_verifier.engine.packing import PackedStep, item_of
from common.errors import CapacityError, UserError

ASKS = frozenset({"get_conv_state", "get_recurrent_state", "update_conv_state", "update_recurrent_state"})
"""Methods of transformers' `Cache` that a layer with a state calls."""

CACHES = ("cache_params", "past_key_values")
"""How layers name the cache among their arguments."""

MOST_PARTS = 4
"""States that one layer may number (`state_idx`) at most; Inkling's layers have three."""

UNKNOWN = "its layers keep states in a way that the verifier does not know"

PIECE = 256
"""Rows of one forward when missing states are made anew, as many as a prompt's chunk has."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Holds runs of equally many rows whose sources are known at the same time. A run is a chain of rows, of
    which only the last one's state is kept."""

    rows: Tensor  # int64 [N, L] packed rows
    sources: Tensor | None  # int64 [N] places of the states before the runs; None: their texts begin here
    targets: Tensor  # int64 [N] places of the states after the runs


class StepStates:
    """Runs one step's rows through a layer with a state. Made by `StateStore.prepare`."""

    def __init__(self, store: StateStore, batches: Sequence[_Batch]) -> None:
        self._store = store
        self._batches = batches

    def run(self, layer: _Layer, hidden: Tensor, call: Callable[[Tensor, Cache], Tensor]) -> Tensor:
        """Return the layer's output [1, T, H] for `hidden` [1, T, H], and keep its states.

        `call` runs the layer on rows [N, L, H] with a cache that holds their states.
        """
        outputs: Tensor | None = None
        for batch in self._batches:
            states = None if batch.sources is None else self._store.read(layer.name, batch.sources)
            cache, rows = _OneLayer(layer.number, states), hidden[0][batch.rows]
            if states is None or layer.continues:
                output = call(rows, cache)
            else:
                output = torch.cat([call(row[:, None], cache) for row in rows.unbind(1)], dim=1)
            self._store.write(layer.name, batch.targets, cache.states)
            if outputs is None:
                outputs = output.new_empty((1, hidden.shape[1], output.shape[-1]))
            outputs[0].index_copy_(0, batch.rows.flatten(), output.flatten(0, 1))
        assert outputs is not None, "a step has rows"
        return outputs


class _OneLayer(Cache):
    """transformers' cache of one layer, for a batch of states."""

    def __init__(self, layer: int, states: Mapping[tuple[str, int], Tensor] | None) -> None:
        self._layer = LinearAttentionLayer(number_of_states=MOST_PARTS)
        for (kind, part), state in (states or {}).items():
            getattr(self._layer, kind)[part] = state
            getattr(self._layer, f"is_{kind}_initialized")[part] = True
            self._layer.has_previous_state[part] = True
            if kind == "conv_states":
                self._layer.conv_kernel_size[part] = state.shape[-1]
        super().__init__(layers={layer: self._layer})  # type: ignore[arg-type]  # only ever indexed

    @property
    def states(self) -> dict[tuple[str, int], Tensor]:
        """Return the states [N, ...] by kind and number."""
        return {
            (kind, part): state
            for kind in ("conv_states", "recurrent_states")
            for part, state in getattr(self._layer, kind).items()
            if state is not None
        }


@dataclass(slots=True)
class _Kept:
    """Holds where a slot's state lies, and the session whose rows made it."""

    place: int
    session: int


class StateStore:
    """Holds `num_states` states of every layer with a state, each under a KV slot below `num_slots`.

    Tensors are allocated when a layer first writes, with the shapes and precision of what it writes.
    """

    def __init__(self, num_states: int, num_slots: int) -> None:
        self.num_states = num_states
        self.num_replayed = 0  # rows evaluated anew, since their states were missing
        self._kept = OrderedDict[int, _Kept]()  # by slot, the least recently used first
        self._free = list(range(num_states))
        self._held = OrderedDict[int, list[int]]()  # by session, the slots of its states; newest last
        self._tokens: IntArray = np.zeros(num_slots, np.int32)
        self._layers: dict[str, dict[tuple[str, int], Tensor]] = {}  # each [num_states, ...]

    @property
    def state_bytes(self) -> int:
        """Return the bytes of one state over all layers that have written."""
        return sum(part[0].nbytes for parts in self._layers.values() for part in parts.values())

    def missing(self, items: Sequence[StepItem]) -> Iterator[StepItem]:
        """Yield items that make the missing states of `items`' prefixes anew. Each is to be run at once."""
        for item in items:
            prefix = item.prefix_slots
            while len(prefix) and int(prefix[-1]) not in self._kept:
                start = next((at for at in range(len(prefix), 0, -1) if int(prefix[at - 1]) in self._kept), 0)
                slots = prefix[start : start + PIECE]
                self.num_replayed += len(slots)
                tokens = self._tokens[slots]
                yield item_of(
                    range(-1, len(slots) - 1), slots, prefix[:start], tokens=tokens, session=item.session
                )

    def prepare(self, step: PackedStep, device: torch.device) -> StepStates:
        """Find the states that a step's rows continue from, and places for those that it makes.

        Raises `CapacityError` if there are too few states for the step.
        """
        self._tokens[step.slots] = step.tokens
        sources = self._sources(step.items)
        for slot in step.slots.tolist():
            self._drop(slot)
        all_runs = [_runs(item.parents.tolist(), item.outputs.tolist()) for item in step.items]
        self._reserve(sum(map(len, all_runs)), len(step.items))
        groups: dict[tuple[int, int, bool], list[tuple[range, int, int]]] = {}
        for item, runs, start, source in zip(step.items, all_runs, step.starts, sources, strict=False):
            slots, place_of, level_of = item.slots.tolist(), {-1: source}, {-1: 0}
            for run in runs:
                parent, last = int(item.parents[run.start]), run[-1]
                place_of[last] = self._keep(slots[last], item.session)
                level_of[last] = level_of[parent] + 1
                before = place_of[parent]
                rows = range(start + run.start, start + run.stop)
                group = groups.setdefault((level_of[last], len(run), before < 0), [])
                group.append((rows, before, place_of[last]))
            self._held[item.session] += [slots[run[-1]] for run in runs]
        return StepStates(self, [_batch(runs, device) for _, runs in sorted(groups.items())])

    def read(self, layer: str, places: Tensor) -> dict[tuple[str, int], Tensor]:
        """Return copies of the states [N, ...] at `places` int64 [N]."""
        return {part: held.index_select(0, places) for part, held in self._layers[layer].items()}

    def write(self, layer: str, places: Tensor, states: Mapping[tuple[str, int], Tensor]) -> None:
        """Store states [N, ...] at `places` int64 [N]. Raises `CapacityError` if no memory is left."""
        parts = self._layers.setdefault(layer, {})
        for part, state in states.items():
            if part not in parts:
                try:
                    parts[part] = state.new_zeros((self.num_states, *state.shape[1:]))
                except torch.OutOfMemoryError as error:
                    raise CapacityError(
                        f"no memory on {state.device} for {self.num_states} states; lower --max-rows"
                    ) from error
            parts[part].index_copy_(0, places, state.to(parts[part].dtype))

    def _sources(self, items: Sequence[StepItem]) -> list[int]:
        """Return the place of the state before each item, -1 where its text begins; drop what the sessions of
        `items` have passed."""
        places = list[int]()
        for item in items:
            end = int(item.prefix_slots[-1]) if len(item.prefix_slots) else -1
            for slot in self._held.pop(item.session, ()):
                if slot != end and slot in self._kept and self._kept[slot].session == item.session:
                    self._drop(slot)
            self._held[item.session] = [end]
            if end < 0:
                places.append(-1)
                continue
            if end not in self._kept:
                raise CapacityError(f"{self.num_states} recurrent states are too few; lower --max-rows")
            self._kept.move_to_end(end)
            places.append(self._kept[end].place)
        while len(self._held) > self.num_states:  # of sessions that have ended
            self._held.popitem(last=False)
        return places

    def _reserve(self, count: int, num_sources: int) -> None:
        """Free `count` places, of the states that were not used for longest."""
        while len(self._free) < count:
            if len(self._kept) <= num_sources:
                raise CapacityError(f"{self.num_states} recurrent states are too few; lower --max-rows")
            self._drop(next(iter(self._kept)))

    def _keep(self, slot: int, session: int) -> int:
        kept = self._kept[slot] = _Kept(self._free.pop(), session)
        return kept.place

    def _drop(self, slot: int) -> None:
        kept = self._kept.pop(slot, None)
        if kept is not None:
            self._free.append(kept.place)


def _runs(parents: Sequence[int], outputs: Sequence[int]) -> list[range]:
    """Cut an item's rows into chains that end at rows whose state is needed: outputs, forks and leaves."""
    needed = {*outputs, len(parents) - 1}
    for row, parent in enumerate(parents):
        if parent != row - 1:
            needed |= {row - 1, parent}
    ends = sorted(needed - {-1})
    return [range(end + 1, last + 1) for end, last in zip((-1, *ends), ends, strict=False)]


def _batch(runs: Sequence[tuple[range, int, int]], device: torch.device) -> _Batch:
    rows = torch.tensor([list(rows) for rows, _, _ in runs], device=device)
    sources = torch.tensor([source for _, source, _ in runs], device=device)
    targets = torch.tensor([target for _, _, target in runs], device=device)
    return _Batch(rows, None if runs[0][1] < 0 else sources, targets)


# The layers.

_current: ContextVar[StepStates | None] = ContextVar("forerun_states", default=None)


@contextmanager
def current_states(states: StepStates) -> Iterator[None]:
    """Let layers with a state run by `states`, in this thread, until the block ends."""
    token = _current.set(states)
    try:
        yield
    finally:
        _current.reset(token)


def take_over(model: torch.nn.Module) -> frozenset[int]:
    """Let the layers of `model` that keep a state run by the current step. Return their numbers.

    Outside a step they run as transformers wrote them.
    """
    layers = set[int]()
    for name, module in model.named_modules():
        if _asks_for_states(type(module)):
            number: Any = module.layer_idx
            layers.add(number)
            if not isinstance(module.forward, _Layer):
                module.forward = _Layer(name, number, module)
    return frozenset(layers)


def _asks_for_states(kind: type[torch.nn.Module]) -> bool:
    functions = [inspect.unwrap(each) for each in vars(kind).values() if inspect.isfunction(each)]
    return any(not ASKS.isdisjoint(each.__code__.co_names) for each in functions)


def _continues(kind: type[torch.nn.Module]) -> bool:
    """Tell whether several rows can follow a state in one call. Mamba 1 ignores the state then; other layers
    give it to their kernels by name, or have only a convolution."""
    functions = [inspect.unwrap(each) for each in vars(kind).values() if inspect.isfunction(each)]
    codes = [each.__code__ for each in functions]
    keywords = {
        name for code in codes for names in code.co_consts if isinstance(names, tuple) for name in names
    }
    recurs = any("update_recurrent_state" in code.co_names for code in codes)
    return not recurs or not keywords.isdisjoint(("initial_state", "initial_states"))


class _Layer:
    """Takes the place of the `forward` of a layer with a state."""

    def __init__(self, name: str, number: int, module: torch.nn.Module) -> None:
        self.name, self.number = name, number
        self.continues = _continues(type(module))
        self._forward: Callable[..., Any] = module.forward
        self._names = list(inspect.signature(self._forward).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        states = _current.get()
        if states is None:
            return self._forward(*args, **kwargs)
        rows, cache = self._names[0], next((name for name in CACHES if name in self._names), None)
        if cache is None or given.get("attention_mask") is not None:
            raise UserError(UNKNOWN)
        hidden: Tensor = given.pop(rows)
        return states.run(self, hidden, lambda some, held: self._call({**given, rows: some, cache: held}))

    def _call(self, given: Mapping[str, Any]) -> Tensor:
        output = self._forward(**given)
        if not isinstance(output, Tensor):
            raise UserError(UNKNOWN)
        return output
