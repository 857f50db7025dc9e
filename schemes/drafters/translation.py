"""Drafts by a model with other tokens than the target's (Timor et al. 2025, arXiv 2502.05202).

The draft proposes those of its tokens that the target has, too, with their probabilities (token-level
intersection, TLI). It reads a token of the target's text as its own token with the same bytes, or as its
tokenizer spells them. So the draft's text grows as the target's does, and only this group knows the draft's
tokens. A draft with a part of the target's own vocabulary (FR-Spec, VocabTrim) is the same case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import numpy as np

from common.errors import LocalError, UserError
from common.llama.model import LlamaVocabulary
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Reroot, StartDrafter
from edge_client.draft.batch_plan import DraftNode
from edge_client.draft.branches import Sequences
from edge_client.draft.candidates import Logits, Ranker, Tokens
from edge_client.draft.group import DraftGroup
from edge_client.draft.llama_session import LlamaSession, num_equal


class Translation:
    """Translates between the tokens of a draft and those of a target, by their bytes.

    Both vocabularies must stay open. They are read when the first is needed, which takes a second or more.
    """

    def __init__(self, draft: LlamaVocabulary, target: LlamaVocabulary) -> None:
        self.num_vocab = target.num_vocab
        self._draft, self._target = draft, target
        self._spellings = dict[int, tuple[int, ...]]()

    def group(self, runtime: LlamaRuntime, size: int) -> DraftGroup:
        """Return a group of the draft `runtime` that takes and proposes the target's tokens. Raises
        `UserError` as `draft_of` and `DraftGroup` do."""
        _ = self._columns  # read here, not in the first draft step
        return TranslatedGroup(runtime, size, self)

    @cached_property
    def draft_of(self) -> dict[int, int]:
        """Return the draft's token for each token that both have. Raises `UserError` if there is none.

        Control tokens are equal if their texts are. A target's end that the draft lacks is the draft's own.
        """
        draft, target = self._draft, self._target
        shared = {token: self._own[piece] for piece, token in _by_bytes(target).items() if piece in self._own}
        controls = dict(zip(draft.control_texts, draft.special_ids, strict=True))
        for text, token in zip(target.control_texts, target.special_ids, strict=True):
            if text in controls:
                shared[token] = controls[text]
        if not shared:
            raise UserError("the draft model and the target have no token in common; choose another draft")
        return {token: draft.eos_ids[-1] for token in target.eos_ids if draft.eos_ids} | shared

    @cached_property
    def _own(self) -> dict[bytes, int]:
        return _by_bytes(self._draft)

    @cached_property
    def _columns(self) -> tuple[Tokens, Tokens]:
        """Return the target's tokens that the draft has, and the draft's tokens for them."""
        pairs = np.array(sorted(self.draft_of.items()), np.int64)
        return pairs[:, 0], pairs[:, 1]

    def logits(self, logits: Logits) -> Logits:
        """Return logits [rows, target's vocabulary] of a draft's [rows, its vocabulary], -inf for tokens that
        the draft lacks."""
        translated = np.full((len(logits), self.num_vocab), -np.inf, np.float32)
        tokens, own = self._columns
        translated[:, tokens] = logits[:, own]
        return translated

    def spelling(self, token: int) -> tuple[int, ...]:
        """Return the draft's tokens for one of the target, at least one."""
        spelling = self._spellings.get(token)
        if spelling is None:
            own = self.draft_of.get(token)
            spelling = (own,) if own is not None else tuple(self._spell(self._target.piece(token)))
            self._spellings[token] = spelling = spelling or self.spelling_of_nothing
        return spelling

    def text(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft's tokens of a text from its beginning on, at least one. Raises `UserError` for
        unknown tokens."""
        begins = self._draft.begin_ids
        has_begin = tokens[0] in self._target.begin_ids and (begins or len(tokens) > 1)
        rest = tokens[1:] if has_begin else tokens
        return [*begins, *(own for token in rest for own in self.spelling(token))]

    @cached_property
    def spelling_of_nothing(self) -> tuple[int, ...]:
        """Return the spelling of a token without text, or with bytes that the draft cannot write."""
        return tuple(self._draft.tokenize(" ", False)[-1:]) or (0,)

    def _spell(self, data: bytes) -> list[int]:
        """Return the draft's tokens of any bytes. Bytes for which it has none are left out."""
        try:
            tokens = self._draft.tokenize(data.decode(), False)
        except UnicodeDecodeError as error:  # such as a part of a character
            start, end = error.start, error.end
            return [*self._spell(data[:start]), *self._cut(data[start:end]), *self._spell(data[end:])]
        is_whole = b"".join(map(self._draft.piece, tokens)) == data  # some tokenizers add a space
        return tokens if is_whole else self._cut(data)

    def _cut(self, data: bytes) -> list[int]:
        """Return the longest token at the beginning, then that of the rest, and so on."""
        tokens, at = list[int](), 0
        while at < len(data):
            end = next((end for end in range(len(data), at, -1) if data[at:end] in self._own), None)
            tokens += [] if end is None else [self._own[data[at:end]]]
            at = at + 1 if end is None else end
        return tokens


def _by_bytes(vocabulary: LlamaVocabulary) -> dict[bytes, int]:
    """Return the token of each piece of text.

    Of several with the same bytes, such as a line feed and the byte 10, it is what the tokenizer writes.
    """
    special, tokens = set(vocabulary.special_ids), dict[bytes, int]()
    for token, piece in enumerate(vocabulary.pieces()):
        if not piece or token in special:
            continue
        if piece in tokens and vocabulary.tokenize(piece.decode("utf-8", "replace"), False) != [token]:
            continue
        tokens[piece] = token
    return tokens


@dataclass(slots=True, eq=False)
class SpeltNode:
    """Holds a node of the target's tokens and the draft's nodes that spell it. The tip may have none."""

    node: DraftNode
    spelling: list[DraftNode]


class TranslatedSession(LlamaSession):
    """Plans a session's rows as `LlamaSession`, for rows, ids and moves of the tip in the target's tokens.

    Texts and KV are in the draft's.
    """

    def __init__(
        self,
        runtime: LlamaRuntime,
        sequences: Sequences,
        trunk: int,
        num_candidates: int,
        clock: Callable[[], float],
        translation: Translation,
    ) -> None:
        super().__init__(runtime, sequences, trunk, num_candidates, clock)
        self._ranker = Ranker(translation.num_vocab, num_candidates)
        self._translation = translation
        self._ids = count(1)  # of the draft's nodes
        self._text: list[int] = []  # the target's tokens up to the tip
        self._num_text_prompt = 0
        self._spelt: dict[int, SpeltNode] = {}  # by the target's node id, the tip first
        self._owner: dict[int, DraftNode] = {}  # the target's node by the id of the last node of its spelling

    def read(self, start: StartDrafter) -> StartDrafter:
        """Take a text in the target's tokens. Return it in the draft's, for `begin`, which refuses none."""
        if not start.tokens or not 0 <= min(start.tokens) <= max(start.tokens) < self._translation.num_vocab:
            return replace(start, tokens=())
        self._text = list(start.tokens)
        self._num_text_prompt = len(self._text) - start.generated
        tip = DraftNode(start.tip, None, self._text[-1], len(self._text) - 1)
        self._spelt = {start.tip: SpeltNode(tip, [])}
        return replace(start, tokens=tuple(self._translation.text(start.tokens)), tip=next(self._ids))

    def begin(
        self, tokens: Sequence[int], tip: int, sampling: SamplingParams, plain: int = 0, generated: int = 0
    ) -> None:
        super().begin(tokens, tip, sampling, plain, generated)
        self._ranker.start(sampling, self._text[: self._num_text_prompt], plain)
        self._owner = {tip: next(iter(self._spelt.values())).node}

    def num_known(self, tokens: Sequence[int]) -> int:
        """Return about how many leading `tokens` of the target have KV. Any thread may call."""
        return min(num_equal(self._text, tokens), self.num_held)

    def node_of(self, row: DraftRow) -> DraftNode:
        spelt = self._spelt.get(row.id)
        if spelt is None:
            above = None if row.parent is None else self._spelt.get(row.parent)
            if above is None or above.node.position != row.position - 1:
                raise LocalError(
                    f"node {row.id} is to be drafted below {row.parent}, which is not live there"
                )
            spelt = self._grow(row.id, above, row.token)
        return spelt.spelling[-1] if spelt.spelling else self._tip

    def _grow(self, node_id: int, above: SpeltNode, token: int) -> SpeltNode:
        """Return a new node of the target's tokens, and make the draft's nodes that spell it."""
        last, spelling = above.spelling[-1] if above.spelling else self._tip, list[DraftNode]()
        for own in self._translation.spelling(token):
            last = DraftNode(next(self._ids), last, own, last.position + 1)
            self._branches.nodes[last.id] = last
            spelling.append(last)
        node = DraftNode(node_id, above.node, token, above.node.position + 1)
        self._owner[last.id] = node
        self._spelt[node_id] = spelt = SpeltNode(node, spelling)
        return spelt

    def reroot(self, change: Reroot) -> None:
        committed = list[DraftNode]()
        tip = next(iter(self._spelt.values()))
        for known, token in change.committed:
            spelt = self._spelt.get(known)
            if spelt is None or spelt.node.token != token or spelt.node.parent is not tip.node:
                spelt = self._grow(known, tip, token)
            committed += spelt.spelling
            self._text.append(token)
            tip = spelt
        tip.node.parent, tip.spelling = None, []
        self._spelt = {each.node.id: each for each in self._live(tip, change.dead)}
        own = [node for each in self._spelt.values() for node in each.spelling]
        live = {node.id for node in (*own, *committed)}
        dead = tuple(known for known in self._branches.nodes if known not in live)
        super().reroot(Reroot(tuple((node.id, node.token) for node in committed), dead))
        self._owner = {each.spelling[-1].id: each.node for each in self._spelt.values() if each.spelling}
        self._owner[self._tip.id] = tip.node

    def _live(self, tip: SpeltNode, dead: Iterable[int]) -> list[SpeltNode]:
        """Return the tip, and the nodes below it that are neither dead nor below a dead one."""
        live, gone = {tip.node: tip}, set(dead)
        for spelt in self._spelt.values():  # parents first
            if spelt.node.parent in live and spelt.node.id not in gone:
                live[spelt.node] = spelt
        return list(live.values())

    def rank(self, logits: Logits, nodes: Sequence[DraftNode]) -> None:
        owners = [self._owner[node.id] for node in nodes]
        translated = self._translation.logits(logits)
        self._rank(translated, owners, self._text, self._num_text_prompt)
        for node, owner in zip(nodes, owners, strict=True):
            node.expansion = owner.expansion


class TranslatedGroup(DraftGroup):
    """Schedules draft steps as `DraftGroup`. Its inputs and answers are in the target's tokens."""

    def __init__(self, runtime: LlamaRuntime, size: int, translation: Translation) -> None:
        self._translation = translation
        super().__init__(runtime, size)

    def _session(self, trunk: int, num_candidates: int) -> TranslatedSession:
        own = self._runtime, self._sequences, trunk, num_candidates, self._clock
        return TranslatedSession(*own, self._translation)

    def begin(self, index: int, start: StartDrafter) -> None:
        super().begin(index, self._translated(index).read(start))

    def num_common(self, index: int, tokens: Sequence[int]) -> int:
        return self._translated(index).num_known(tokens)

    def num_kept(self, tokens: Sequence[int]) -> int:
        return max(self.num_common(member.index, tokens) for member in self.members)

    def _translated(self, index: int) -> TranslatedSession:
        session = self.members[index].session
        assert isinstance(session, TranslatedSession), "made by `_session`"
        return session
