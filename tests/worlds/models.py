"""Tiny models with real behaviour: a target that reads its context out of KV slots, drafters good and bad."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import (
    Followers,
    GuessItem,
    GuessPlan,
    GuessResult,
    RowLogprobs,
    StepItem,
    StepPlan,
    StepResult,
    TargetEngine,
    TargetInfo,
)
from cloud_verifier.core.rules import decide
from common.chances import Chances
from common.choice import choose
from common.errors import PeerError, UserError
from common.messages import Open
from common.noise import bits_under, gumbel, noise_key
from common.sampling import SamplingParams
from edge_client.core.effects import NOTHING_READ, DraftRow, Expansion, ReadingTime, Reroot
from tests.support.law import process_logits, rank
from training.session_drafter import SessionDrafter

FloatArray = NDArray[np.float32]
TokenArray = NDArray[np.int32]
VOCAB = 7
EOS = 0  # the end token of worlds that have one
Mask = NDArray[np.bool_]
MaskOf = Callable[[str, Sequence[int]], Mask | None]
"""What a grammar allows after generated tokens; None where those break it."""
FINGERPRINT = b"tiny"


def tiny_logits(salt: int, context: Sequence[int], memory: int = 3) -> FloatArray:
    """float32 [VOCAB]: what the tiny model of this salt says after the last `memory` tokens of its context.

    With a memory of one a greedy text goes in circles of a few tokens.
    """
    key = 0
    for token in context[-memory:]:
        key = key * 31 + token + 1
    bits = bits_under(np.uint64(noise_key(salt, key)), np.arange(VOCAB, dtype=np.int64))
    return ((bits >> np.uint64(40)).astype(np.float64) / 2.0**24 * 6.0).astype(np.float32)


def no_repeats(grammar: str, generated: Sequence[int]) -> Mask | None:
    """A grammar of the tiny models, the number N in digits: of the last tokens no N may be the same, and 6
    never follows 5; the end token is free. Like a real one it reads the whole text and knows what breaks it.
    """
    most, tokens = int(grammar), list(generated)
    allowed = np.ones(VOCAB, np.bool_)
    for at in range(len(tokens) + 1):
        allowed = np.ones(VOCAB, np.bool_)
        run = tokens[max(0, at - most + 1) : at]
        if len(run) == most - 1 and len(set(run)) == 1:
            allowed[run[0]] = False
        if at and tokens[at - 1] == 5:
            allowed[6] = False
        allowed[EOS] = True
        if at < len(tokens) and not allowed[tokens[at]]:
            return None
    return allowed


@dataclass
class TinyTarget(TargetEngine):
    """An engine whose only memory is its KV slots: a wrong slot gives a wrong text."""

    info: TargetInfo
    salt: int = 1
    memory: int = 3
    chances: Chances | None = None  # of acceptance rules, if a test has its own
    mask_of: MaskOf = no_repeats
    blend: float = 0.0  # of its own drafter: how much of another model it mixes in; see `TinyDrafter`
    lies: bool = False  # its drafter claims certainty for any tokens

    def __post_init__(self) -> None:
        self.kv: dict[int, tuple[int, int]] = {}  # slot -> (position, token)

    def check_grammar(self, request: Open) -> None:
        grammar = request.sampling.grammar
        if not re.fullmatch("[2-9]", grammar):
            raise UserError(f"the grammar is refused: {grammar[:10]!r} is no digit from 2 to 9")
        if self.mask_of(grammar, request.committed) is None:
            raise PeerError("the committed tokens break the session's grammar, so they are not its text")

    def evaluate(self, plan: StepPlan) -> StepResult:
        written = [slot for item in plan.items for slot in item.slots.tolist()]
        prefixes = {slot for item in plan.items for slot in item.prefix_slots.tolist()}
        assert len(set(written)) == len(written), "two rows write one slot"
        assert not prefixes & set(written), "a row overwrites somebody's prefix"
        results = [self._item(item) for item in plan.items]
        told = tuple(r[2] for r in results) if any(r[2] for r in results) else ()
        return StepResult(tuple(r[0] for r in results), tuple(r[1] for r in results), told)

    def guess(self, plan: GuessPlan) -> GuessResult:
        """Guess by the tiny model on what the slots hold; see `TargetEngine.guess`."""
        return GuessResult(tuple(self._guess(item) if item.depth > 0 else () for item in plan.items))

    def _guess(self, item: GuessItem) -> tuple[Followers, ...]:
        text = [*self._entries(item.prefix_slots), item.tip]
        said = list[Followers]()
        paths: list[tuple[int, ...]] = [()]
        for _ in range(item.depth):
            level = [self._followers(item, text, path) for path in paths]
            said += level
            paths = [(*each.path, token) for each in level for token in each.tokens[:1]][: item.width]
        return tuple(said)

    def _followers(self, item: GuessItem, text: list[int], path: tuple[int, ...]) -> Followers:
        if self.lies:
            order = tuple(np.roll(np.arange(VOCAB), sum(path) + item.tip)[:3].tolist())
            return Followers(path, order, (9.0, 1.0, 0.0))
        whole = [*text, *path]
        right, wrong = (tiny_logits(salt, whole, self.memory) for salt in (self.salt, 99))
        logits = np.asarray((1 - self.blend) * right + self.blend * wrong, np.float32)
        ranking = rank(logits, item.sampling, len(whole) - 1, 4, np.array(whole), np.array(path))
        return Followers(path, tuple(ranking.tokens.tolist()), tuple(ranking.scores.tolist()))

    def _item(self, item: StepItem) -> tuple[np.ndarray, np.ndarray, RowLogprobs | None]:
        prefix = self._read(item)
        paths: list[list[int]] = []
        for row, (token, parent) in enumerate(zip(item.tokens.tolist(), item.parents.tolist(), strict=True)):
            assert parent < row
            path = (prefix if parent < 0 else paths[parent]) + [token]
            assert item.positions[row] == len(path) - 1
            self.kv[int(item.slots[row])] = (len(path) - 1, token)
            paths.append(path)
        chosen = [self._choose(item, paths[row]) for row in item.outputs.tolist()]
        choices = np.array([c[0] for c in chosen], np.int32)
        if item.ask is not None:
            outputs = item.outputs.tolist()
            choices = decide(item, choices, lambda row: self._law(item, paths[outputs[row]]), self.chances)
        told = None
        if item.logprobs is not None:
            outputs = [paths[row] for row in item.outputs.tolist()]
            told = tiny_logprobs(self.salt, outputs, choices.tolist(), item.logprobs, self.memory)
        return choices, np.array([c[1] for c in chosen], np.float32), told

    def _law(self, item: StepItem, path: list[int]) -> NDArray[np.float64]:
        prompt, generated, allowed = self._history(item, path)
        logits = tiny_logits(self.salt, path, self.memory)
        weights = np.exp(process_logits(logits, item.sampling, prompt, generated, allowed))
        return np.asarray(weights / weights.sum())

    def _read(self, item: StepItem) -> list[int]:
        return self._entries(item.prefix_slots)

    def _entries(self, slots: TokenArray) -> list[int]:
        entries = [self.kv[slot] for slot in slots.tolist()]
        assert [position for position, _ in entries] == list(range(len(entries)))
        return [token for _, token in entries]

    def _choose(self, item: StepItem, path: list[int]) -> tuple[int, float]:
        prompt, generated, allowed = self._history(item, path)
        logits = tiny_logits(self.salt, path, self.memory)
        choice = choose(logits, item.sampling, len(path) - 1, prompt, generated, allowed)
        return choice.token, choice.margin

    def _history(
        self, item: StepItem, path: list[int]
    ) -> tuple[TokenArray | None, TokenArray | None, Mask | None]:
        """The prompt and what comes after it, where penalties or a grammar ask, and what that allows."""
        if not item.sampling.reads_text:
            return None, None, None
        assert item.prompt is not None
        assert item.generated is not None
        generated = np.array(path[len(item.prompt) :], np.int32)
        assert generated.tolist()[: len(item.generated)] == item.generated.tolist()
        grammar = item.sampling.grammar
        return item.prompt, generated, self.mask_of(grammar, generated.tolist()) if grammar else None


def tiny_logprobs(
    salt: int, paths: Sequence[Sequence[int]], choices: Sequence[int], most: int, memory: int = 3
) -> RowLogprobs:
    """What the tiny model holds of these choices after these paths, and of its likeliest tokens."""
    logits = np.array([tiny_logits(salt, path, memory) for path in paths]).reshape(-1, VOCAB)
    logprobs = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :most].astype(np.int32)
    own = logprobs[np.arange(len(choices)), list(choices)]
    return RowLogprobs(own, order, np.take_along_axis(logprobs, order, axis=1))


def target_alone(
    prompt: Sequence[int],
    sampling: SamplingParams,
    eos: Sequence[int],
    salt: int = 1,
    memory: int = 3,
    begun: Sequence[int] = (),
) -> tuple[int, ...]:
    """What the tiny target writes by itself: the text every session must have. `begun` is there already."""
    text = [*prompt, *begun]
    stop = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos))
    while len(text) - len(prompt) < sampling.max_tokens:
        generated = np.array(text[len(prompt) :], np.int32)
        logits = tiny_logits(salt, text, memory)
        allowed = no_repeats(sampling.grammar, generated.tolist()) if sampling.grammar else None
        choice = choose(logits, sampling, len(text) - 1, np.array(prompt, np.int32), generated, allowed)
        text.append(choice.token)
        if choice.token in stop:
            break
    return tuple(text[len(prompt) :])


class TinyDrafter:
    """A `SessionDrafter` over the tiny model. `salt` 1 is the target itself; `blend` mixes another model in.

    `lie` shuffles the candidates and claims certainty; `mute_after` gives no candidates after so many rows;
    without `knows_grammar` it drafts what the session's grammar forbids.
    """

    def __init__(
        self, blend: float = 0.5, lie: bool = False, mute_after: int | None = None, knows_grammar: bool = True
    ) -> None:
        self.blend, self.lie, self.mute_after, self.knows_grammar = blend, lie, mute_after, knows_grammar
        self.rows_left = mute_after
        self.memory = 3  # the target's, told by the world
        self.reading = NOTHING_READ  # of the latest `expand`, which takes no time here
        self._evaluated: set[int] = set()  # ids of nodes, committed ones included
        self._unread: list[int] = []  # ids of committed nodes before the tip; 0 for each of the prompt's
        self.tokens: list[int] = []
        self.nodes: dict[int, tuple[int | None, int]] = {}  # id -> (parent, token)

    def start(self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0) -> None:
        self.tokens, self.sampling, self.tip, self.nodes, self.plain = list(tokens), sampling, tip, {}, plain
        self.prompt_length = len(tokens)
        self._evaluated, self._unread = set(), [0] * (len(tokens) - 1)

    def reroot(self, change: Reroot) -> None:
        for node_id, token in change.committed:
            if self.tip not in self._evaluated:
                self._unread.append(self.tip)
            self.tokens.append(token)
            self.tip = node_id
            self.nodes.pop(node_id, None)
        for node_id in change.dead:
            self.nodes.pop(node_id, None)

    def expand(self, rows: Sequence[DraftRow]) -> list[Expansion]:
        self.reading = ReadingTime(len(self._unread))
        self._unread.clear()
        self._evaluated.update(row.id for row in rows)
        return [self._expand(row) for row in rows]

    def _expand(self, row: DraftRow) -> Expansion:
        if row.id != self.tip:
            assert row.parent is not None
            assert row.parent == self.tip or row.parent in self.nodes, "asked for a child of an unknown node"
            self.nodes[row.id] = (row.parent, row.token)
        path = self._path(row)
        assert row.position == len(path) - 1
        if self.rows_left is not None:
            self.rows_left -= 1
            if self.rows_left < 0:
                return Expansion(row.id, (), ())
        return self._candidates(row, path)

    def _path(self, row: DraftRow) -> list[int]:
        tail: list[int] = []
        current: int | None = row.id
        while current is not None and current != self.tip:
            parent, token = self.nodes[current]
            tail.append(token)
            current = parent
        return self.tokens + tail[::-1]

    def _candidates(self, row: DraftRow, path: list[int]) -> Expansion:
        right, wrong = (tiny_logits(salt, path, self.memory) for salt in (1, 99))
        logits = (1 - self.blend) * right + self.blend * wrong
        logits = np.asarray(logits, np.float32)
        if self.lie:
            order = np.roll(np.arange(VOCAB), row.id)[:3]
            return Expansion(row.id, tuple(order.tolist()), (9.0, 1.0, 0.0))
        prompt, generated = np.split(np.array(path, np.int32), [self.prompt_length])
        grammar = self.sampling.grammar
        allowed = no_repeats(grammar, generated.tolist()) if grammar and self.knows_grammar else None
        scores = process_logits(logits, self.sampling, prompt, generated, allowed).astype(np.float64)
        if not self.sampling.greedy and not self.plain:
            scores = scores + gumbel(self.sampling.seed, len(path), np.arange(VOCAB, dtype=np.int64))
        order = np.argsort(-scores, kind="stable")[: self.plain or 4]
        kept = [int(token) for token in order if np.isfinite(scores[token])]
        return Expansion(row.id, tuple(kept), tuple(float(scores[token]) for token in kept))


def begin(
    drafter: SessionDrafter,
    tokens: Sequence[int],
    tip: int,
    sampling: SamplingParams,
    plain: int = 0,
    generated: int = 0,
) -> None:
    """Start a drafter on a prompt and the last `generated` of `tokens`, which are text: what `reroot` adds
    counts as that. The ids on the way are the drafter's alone, and below all others."""
    num_prompt = len(tokens) - generated
    if not generated:
        drafter.start(tokens, tip, sampling, plain)
        return
    drafter.start(tokens[:num_prompt], tip - generated, sampling, plain)
    ids = range(tip - generated + 1, tip + 1)
    drafter.reroot(Reroot(tuple(zip(ids, tokens[num_prompt:], strict=True)), ()))
