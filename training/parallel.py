"""Trains drafts for several tokens in one decode (PARD, arXiv 2504.18583; ParallelSpec, arXiv 2410.05589).

Behind a text stand masks: tokens that no text holds. The row of the j-th mask says what follows j unknown
tokens. To the model masks are tokens like others, so it runs wherever the draft runs
(`schemes.drafters.parallel`). Many places of a text are trained at once: the masks of each, its anchor, see
the text up to it and each other, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from common.errors import UserError
from edge_client.draft.shared_model import PARALLEL
from training.draft_weights import DraftWeights
from training.lessons import DraftReport, Lesson, Logits, measure, passes, with_rest
from training.losses import Loss, coupled_acceptance
from training.trainer import Losses

KEPT = 0.8
"""Share of the anchors with a mask that have the next one, too. Deeper masks teach less (PARD takes 0.7)."""

NEVER_IN_UTF8 = (0xC0, 0xC1, *range(0xF5, 0x100))
"""Bytes that no text holds. A tokenizer that knows every byte has tokens for them."""

NUM_MEASURED = 32
"""Texts on which masks are measured."""

HIDDEN = torch.finfo(torch.float32).min


def choose_masks(path: Path, count: int, used: Collection[int]) -> tuple[int, ...]:
    """Return `count` tokens that no text holds: unused ones, bytes outside UTF-8, control tokens.

    They are the file's own, if it is that of a parallel draft with as many. A vocabulary with fewer tokens
    has its last one several times. Raises `UserError` if it has none. Args: used: tokens that texts hold.
    """
    fields = gguf.GGUFReader(path).fields
    if PARALLEL in fields and len(own := fields[PARALLEL].contents().split(",")) == count:
        return tuple(map(int, own))
    texts, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    by_byte = fields["tokenizer.ggml.model"].contents() == "gpt2"
    bytes_outside = {chr(byte) if by_byte else f"<0x{byte:02X}>" for byte in NEVER_IN_UTF8}
    template = fields["tokenizer.chat_template"].contents() if "tokenizer.chat_template" in fields else ""
    ends = {field.contents() for name, field in fields.items() if name.endswith("_token_id")}
    free = [token for token in range(len(texts)) if token not in ends and token not in used]
    unused = [token for token in free if kinds[token] == gguf.TokenType.UNUSED]
    outside = [token for token in free if texts[token] in bytes_outside]
    control = [
        token for token in free if kinds[token] == gguf.TokenType.CONTROL and texts[token] not in template
    ]
    masks = [*unused, *outside, *control][:count]
    if not masks:
        raise UserError(f"--parallel needs a token that no text holds, and {path} has none; leave it out")
    return (*masks, *masks[-1:] * (count - len(masks)))


@dataclass(frozen=True, slots=True)
class MaskedTexts:
    """Holds texts with masks behind them, padded: T tokens, then M masks. A mask's anchor is a place."""

    tokens: Tensor  # int64 [B, T + M]
    positions: Tensor  # int64 [B, T + M]
    hidden: Tensor  # float [B, 1, T + M, T + M]: 0 where a row sees a column
    is_read: Tensor  # bool [B, T + M]: rows with logits

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[int]],
        firsts: Sequence[int],
        anchors: Sequence[Sequence[tuple[int, int]]],
        masks: Sequence[int],
    ) -> MaskedTexts:
        """Put masks behind texts. Rows of a text from its `first` on have logits, and those of its masks.

        Args: anchors: of each text the place and the number (from 1) of each mask; one of number j follows
        after the same place's one of number j - 1. A first of a text's length reads its masks alone.
        """
        length = max(map(len, texts))
        size = (len(texts), length + max(map(len, anchors)))
        tokens, place, number = (torch.zeros(size, dtype=torch.int64) for _ in range(3))
        is_real, is_read = (torch.zeros(size, dtype=torch.bool) for _ in range(2))
        place[:, :length] = torch.arange(length)
        for row, (text, first, own) in enumerate(zip(texts, firsts, anchors, strict=True)):
            tokens[row, : len(text)] = torch.as_tensor(text, dtype=torch.int64)
            is_real[row, : len(text)] = True
            is_read[row, first : len(text)] = True
            if own:
                behind = slice(length, length + len(own))
                place[row, behind], number[row, behind] = torch.tensor(own).T
                tokens[row, behind] = torch.tensor(masks)[number[row, behind] - 1]
                is_real[row, behind] = is_read[row, behind] = True
        text_column = (number == 0).unsqueeze(1)
        behind_anchor = place.unsqueeze(1) <= place.unsqueeze(2)
        same_anchor = (place.unsqueeze(1) == place.unsqueeze(2)) & (number > 0).unsqueeze(2)
        sees = (text_column & behind_anchor) | (
            ~text_column & same_anchor & (number.unsqueeze(1) <= number.unsqueeze(2))
        )
        sees = (sees & is_real.unsqueeze(1)) | torch.eye(size[1], dtype=torch.bool)
        hidden = torch.zeros(sees.shape).masked_fill_(~sees, HIDDEN).unsqueeze(1)
        return cls(tokens, place + number, hidden, is_read)

    def logits(self, draft: DraftWeights) -> Tensor:
        """Return logits [N, V] of the rows that are read, text by text, its own rows first."""
        return draft.logits(
            self.tokens, self.is_read, position_ids=self.positions, attention_mask=self.hidden
        )


@dataclass(frozen=True, slots=True)
class ParallelDraft:
    """Trains and measures a draft with `masks`. `seed` draws the anchors of an update."""

    draft: DraftWeights
    masks: tuple[int, ...]
    temperature: float
    seed: int = 0

    @property
    def fields(self) -> dict[str, str]:
        """Return the metadata that tell the edge of the masks."""
        return {PARALLEL: ",".join(map(str, self.masks))}

    def losses(self, lessons: Sequence[Lesson], loss: Loss, most_rows: int) -> Losses:
        """Return the losses of a text's rows and of its masks' rows, in passes of about `most_rows` tokens
        without masks."""

        def losses(places: Sequence[int], share: float) -> Iterator[Tensor]:
            chance = np.random.default_rng((self.seed, round(share * 1e6), *places))
            groups = list(passes([lessons[place] for place in places], most_rows))
            drawn = [[self._anchors(lesson, chance) for lesson in group] for group in groups]
            taught = sum(len(lessons[place].best) for place in places)
            taught += sum(len(anchors) for group in drawn for anchors in group)
            for group, anchors in zip(groups, drawn, strict=True):
                target, own = self._pairs(group, anchors)
                yield loss(target, own).sum(dim=0, keepdim=True) / taught

        return losses

    def _anchors(self, lesson: Lesson, chance: np.random.Generator) -> list[tuple[int, int]]:
        """Draw the anchors of a lesson's masks. Each mask has a row of the lesson."""
        last, anchors = len(lesson.tokens) - 1, list[tuple[int, int]]()
        order = chance.permutation(np.arange(lesson.first, last)).tolist()
        for number in range(1, len(self.masks) + 1):
            anchors += [(place, number) for place in order if place + number <= last]
            order = order[: max(1, round(KEPT * len(order)))]
        return anchors

    def _pairs(
        self, lessons: Sequence[Lesson], anchors: Sequence[Sequence[tuple[int, int]]]
    ) -> tuple[Tensor, Tensor]:
        """Return the target's and the draft's log-probabilities, both [N, K + 1]."""
        firsts = [lesson.first for lesson in lessons]
        masked = MaskedTexts.of([each.tokens.tolist() for each in lessons], firsts, anchors, self.masks)
        said = (masked.logits(self.draft).float() / self.temperature).log_softmax(dim=-1)
        best, logprobs = list[Tensor](), list[Tensor]()
        for lesson, own in zip(lessons, anchors, strict=True):
            rows = [*range(len(lesson.best)), *(place + number - lesson.first for place, number in own)]
            best.append(torch.from_numpy(lesson.best[rows].astype(np.int64)))
            logprobs.append(torch.from_numpy(lesson.logprobs[rows]))
        return with_rest(torch.cat(logprobs)), with_rest(said.gather(-1, torch.cat(best)))

    def shares(self, lessons: Sequence[Lesson]) -> tuple[float, ...]:
        """Return the mean chance of the same token under shared noise: of the draft's own rows, and of those
        of each mask."""
        chances = [list[Tensor]() for _ in range(1 + len(self.masks))]
        for lesson in lessons:
            last = len(lesson.tokens) - 1
            anchors = [
                (place, number)
                for number in range(1, len(chances))
                for place in range(lesson.first, last + 1 - number)
            ]
            with torch.inference_mode():
                target, own = self._pairs([lesson], [anchors])
                same = coupled_acceptance(target, own, has_rest=True)
            lengths = [max(0, len(lesson.best) - number) for number in range(len(chances))]
            for mine, part in zip(chances, torch.split(same, lengths), strict=True):
                mine.append(part)
        return tuple(torch.cat(part).mean().item() for part in chances)

    def added(self, report: DraftReport, lessons: Sequence[Lesson]) -> DraftReport:
        """Add what the masks know of some of the lessons to the draft's report."""
        return replace(report, by_mask=self.shares(lessons[:NUM_MEASURED])[1:])

    def with_texts(self, report: DraftReport, lessons: Sequence[Lesson]) -> DraftReport:
        """Add what the draft says of some of the lessons' texts, its own rows and those of each mask."""
        drafts = [self.draft.logits, *map(self._by_mask, range(1, 1 + len(self.masks)))]
        texts, *masked = (measure(each, lessons[:NUM_MEASURED], self.temperature).texts for each in drafts)
        return replace(report, texts=texts, masked=tuple(masked))

    def _by_mask(self, number: int) -> Logits:
        """Return a draft of one text that says of each row what the mask `number` places behind says."""

        def logits(tokens: Tensor, rows: Tensor) -> Tensor:
            text, places = tokens[0].tolist(), (rows[0].nonzero().squeeze(-1) - number).clamp(min=0).tolist()
            anchors = [(place, each) for each in range(1, number + 1) for place in places]
            masked = MaskedTexts.of([text], [len(text)], [anchors], self.masks)
            masked.is_read[:, : masked.is_read.shape[1] - len(places)] = False
            return masked.logits(self.draft)

        return logits
