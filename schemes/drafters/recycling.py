"""Token recycling (Luo et al. 2024, arXiv 2408.08696): what was likely after a token is likely so again.

A matrix holds eight candidates after each token: the target's likeliest at the newest row of that token,
whether the row became text or died. Guesses are read from it level by level. No model runs, so the tree is as
wide and as deep as the rows are worth; how far to trust it is learnt as for any drafter.

The authors keep one matrix over all texts, which begins warm. That is `recycling:shared`, for a verifier
whose users trust each other. The speed of guesses lets them infer each other's texts, as `shared_texts` does
(`cloud_verifier.core.limits`), and a lossy rule may write a guess, so a text then depends on others.
By `recycling` each session has a matrix of its own, empty at first.

The authors' tree is a template of 80 nodes, ours grows by chances to the rows that a session may have.
Penalties and bias do not change the candidates' scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cloud_verifier.core.engine_protocol import Followers, GuessItem, GuessPlan, GuessResult
from cloud_verifier.engine.attention.backend import running_step
from cloud_verifier.engine.model.transformers_adapter import TargetModel
from cloud_verifier.engine.packing import PackedStep
from cloud_verifier.engine.torch_engine import TorchEngine
from common.calibration import promised
from common.choice import process_adjusted
from common.errors import UserError
from common.noise import gumbel
from common.vocabulary import Vocabulary
from schemes.drafters.drafter import MOST_LEVELS
from schemes.drafters.guessing import LEAST_FOLLOWED

NUM_CANDIDATES = 8
"""Candidates after a token (the paper's k)."""

SHARED = "recycling:shared"

MOST_MATRICES = 256
"""Sessions whose matrices are kept, the newest. A matrix takes 300 bytes for each token that had a row."""

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


def keep_likeliest(target: TargetModel) -> None:
    """Keep the likeliest tokens and their logits of each output row at its slot, from now on, as features
    float32 [2 K]. CUDA graphs capture this with the step."""

    def keep(_module: nn.Module, _inputs: Any, named: dict[str, Any], output: Any) -> None:
        if (step := running_step()) is None:
            return
        outputs = named.get("logits_to_keep")  # without it the model returns the logits of all rows
        slots = step.slots if outputs is None else step.slots.index_select(0, outputs)
        best = output.logits[0, :, : target.vocab_size].float().topk(min(NUM_CANDIDATES, target.vocab_size))
        step.kv.write_features(slots, torch.cat((best.indices.float(), best.values), dim=1))

    target.module.register_forward_hook(keep, with_kwargs=True)


class Candidates(NamedTuple):
    """Holds what may follow a token, the likeliest first."""

    tokens: IntArray  # [K]
    logits: FloatArray  # [K]

    @classmethod
    def of(cls, said: FloatArray) -> Candidates:
        """Divide ids and logits [2 K]."""
        ids, logits = np.split(said, 2)
        return cls(ids.astype(np.int64), logits)


class Recycling:
    """Guesses from what the target said (an `OwnDraft`)."""

    depth = MOST_LEVELS
    has_own_kv = False
    num_scratch = 0

    def __init__(self, target: TargetModel, *, is_shared: bool = False) -> None:
        """`is_shared`: all sessions have one matrix."""
        self._is_shared = is_shared
        keep_likeliest(target)

    def beside(self, engine: TorchEngine) -> Recycler:
        return Recycler(engine, self._is_shared)


class _Node(NamedTuple):
    """A node whose followers are sought."""

    text: int  # number of the plan's item
    path: tuple[int, ...]  # as in `Followers`
    token: int
    logprob: float  # of the path, nats


class Recycler:
    """Keeps the matrices of one engine's sessions, and guesses from them (an `EngineDrafter`)."""

    def __init__(self, engine: TorchEngine, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._kv = engine.kv
        self._device = engine.model.device
        self._max_positions = engine.info.max_positions
        self._ends = frozenset(engine.info.eos_token_ids)
        self._matrices: dict[int, dict[int, FloatArray]] = {}  # by session, then by token; the newest last
        self._noted: PackedStep | None = None  # the newest step, whose rows are not learnt yet

    @property
    def slot_bytes(self) -> int:
        features = self._kv.features
        return 0 if features is None else features[0].nbytes

    def note(self, step: PackedStep) -> None:
        """Note the target's next step. What the step before it said is still at its slots, and is learnt."""
        self._learn()
        self._noted = step

    def take_memory(self) -> None:
        """Do nothing: the first row has allocated all."""

    def guess(self, plan: GuessPlan) -> GuessResult:
        """Guess level by level, as long as a level may win `plan.least_gain` tokens."""
        self._learn()
        guessed = [list[Followers]() for _ in plan.items]
        nodes = [_Node(number, (), item.tip, 0.0) for number, item in enumerate(plan.items) if item.depth]
        while nodes and sum(math.exp(node.logprob) for node in nodes) >= plan.least_gain:
            nodes = [
                child
                for node in nodes
                for child in self._expanded(plan.items[node.text], node, guessed[node.text])
            ]
        return GuessResult(tuple(tuple(followers) for followers in guessed))

    def matrix(self, session: int) -> dict[int, Candidates]:
        """Return a session's candidates by token, with what the newest step said."""
        self._learn()
        return {token: Candidates.of(said) for token, said in self._matrix_of(session).items()}

    def _learn(self) -> None:
        """Write the rows of the noted step to the matrices. Of equal tokens the last row counts."""
        step, self._noted = self._noted, None
        if step is None or self._kv.features is None or not len(step.outputs):
            return
        slots = torch.from_numpy(step.slots[step.outputs]).to(self._device)
        said = self._kv.features.index_select(0, slots).cpu().numpy()
        items = np.searchsorted(step.starts, step.outputs, side="right") - 1
        tokens = step.tokens[step.outputs].tolist()
        for item, token, said_after in zip(items.tolist(), tokens, said, strict=True):
            self._matrix_of(step.items[item].session)[token] = said_after.copy()  # not all rows with it

    def _matrix_of(self, session: int) -> dict[int, FloatArray]:
        """Return the matrix that the session reads and writes, the newest from now on: ids and logits [2 K]
        by token."""
        session = 0 if self._is_shared else session
        matrix = self._matrices.pop(session, None)
        if matrix is None:
            matrix = {}
            if len(self._matrices) >= MOST_MATRICES:
                del self._matrices[next(iter(self._matrices))]
        self._matrices[session] = matrix
        return matrix

    def _expanded(self, item: GuessItem, node: _Node, guessed: list[Followers]) -> Sequence[_Node]:
        """Add what follows the node to `guessed`. Return those whose followers are sought next."""
        position = len(item.prefix_slots) + len(node.path)
        said = self._matrix_of(item.session).get(node.token)
        ends = node.token in self._ends and not item.sampling.ignore_eos
        if said is None or ends or position >= self._max_positions:
            return ()
        followers = _ranked(Candidates.of(said), item, node.path, position)
        guessed.append(followers)
        if len(node.path) + 1 >= min(item.depth, MOST_LEVELS):
            return ()
        least = math.log(max(item.least, LEAST_FOLLOWED)) - node.logprob
        logprobs = promised(item.confidence, followers.scores)
        return [
            _Node(node.text, (*node.path, token), token, node.logprob + logprob)
            for token, logprob in zip(followers.tokens, logprobs, strict=True)
            if logprob >= least
        ]


def _ranked(candidates: Candidates, item: GuessItem, path: tuple[int, ...], position: int) -> Followers:
    """Rank candidates under the target's noise, as if there were no other tokens."""
    sampling = item.sampling
    scores = process_adjusted(candidates.logits, sampling)
    if not sampling.greedy:
        scores = scores + gumbel(sampling.seed, position + 1, candidates.tokens)
    order = [place for place in np.argsort(-scores, kind="stable").tolist() if scores[place] > -math.inf]
    return Followers(path, tuple(candidates.tokens[order].tolist()), tuple(scores[order].tolist()))


def load_recycling(source: str, target: TargetModel, _vocabulary: Vocabulary) -> Recycling:
    """Return the drafter for `recycling` or `recycling:shared`. Raises `UserError` for other arguments."""
    if source not in ("recycling", SHARED):
        raise UserError(f"--drafter is {source!r}; it must be recycling, or {SHARED} with one matrix for all")
    return Recycling(target, is_shared=source == SHARED)
