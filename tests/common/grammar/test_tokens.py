"""A vocabulary for grammars: padding is never allowed, control tokens are no text, every end token ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from common.errors import UserError
from tests.common.grammar import vocabulary as v

if TYPE_CHECKING:
    from common.grammar import Tokens

pytestmark = pytest.mark.grammar

TOKENIZER = Path(__file__).parents[3] / "demo_models" / "target" / "tokenizer.json"


def tokens(width: int = v.WIDTH) -> Tokens:
    from common.grammar import Tokens

    return Tokens(v.PIECES, v.SPECIAL, v.EOS, width)


def after(some: Tokens, grammar: str, *path: int) -> list[int]:
    from common.grammar import Grammars

    mask = Grammars(some).matcher(grammar).allowed(np.array(path, np.int32))
    assert mask is not None
    assert mask.shape == (some.width,)
    return np.flatnonzero(mask).tolist()


def test_a_row_of_logits_wider_than_the_vocabulary_has_its_rest_forbidden() -> None:
    anything = r"start: /(.|\n)*/"
    assert after(tokens(), anything) == [*range(15), v.END, v.TURN]
    assert after(tokens(500), anything) == [*range(15), v.END, v.TURN]


def test_a_row_narrower_than_the_vocabulary_has_what_fits_in_it() -> None:
    assert after(tokens(19), "start: /a*/") == [v.A, v.END]


def test_control_tokens_are_no_text_and_can_be_asked_for_by_name() -> None:
    assert v.CALL not in after(tokens(), r"start: /(.|\n)*/")
    assert after(tokens(), 'start: <call> "a"') == [v.CALL]
    assert after(tokens(), 'start: <call> "a"', v.CALL) == [v.A]


def test_a_character_may_come_in_halves_and_no_other_half_fits() -> None:
    assert after(tokens(), 'start: "é"') == [v.LEAD]
    assert after(tokens(), 'start: "é"', v.LEAD) == [v.TAIL]


def test_every_end_token_ends() -> None:
    assert after(tokens(), 'start: "a"', v.A) == [v.END, v.TURN]


def test_a_model_without_an_end_token_is_refused() -> None:
    from common.grammar import Tokens

    with pytest.raises(UserError, match="no end token"):
        Tokens(v.PIECES, v.SPECIAL, (), v.WIDTH)


def test_a_byte_level_tokenizer_is_read_as_the_bytes_it_stands_for() -> None:
    from tokenizers import Tokenizer

    from common.grammar import Tokens

    some = Tokens.of_tokenizer_json(TOKENIZER.read_text(), (0,), 3072)
    words = Tokenizer.from_file(str(TOKENIZER))
    text = "def f(x):\n    return {'é': x}\t# 你好"
    ids = words.encode(text).ids
    literal = "start: " + " ".join(f"/{part}/" for part in ["[^q]*"])
    assert some.tokenizer.decode_bytes(ids) == text.encode()
    assert after(some, literal, *ids)
    assert 0 in after(some, literal, *ids)


def sentencepiece() -> str:
    from tokenizers import Tokenizer, decoders, models

    vocab = {"<unk>": 0, "</s>": 1, "<0x0A>": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5, "a": 6, "▁a": 7}
    model = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    model.add_special_tokens(["<unk>", "</s>"])
    model.add_tokens(["<tool>"])
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return str(model.to_str())


def test_a_sentencepiece_tokenizer_is_read_as_the_bytes_it_stands_for() -> None:
    from common.grammar import Tokens

    some = Tokens.of_tokenizer_json(sentencepiece(), (1,), 12)
    assert after(some, r'start: " a" "\n" "é"') == [5, 7]
    assert after(some, r'start: " a" "\n" "é"', 7) == [2]
    assert after(some, r'start: " a" "\n" "é"', 5, 6, 2) == [3]
    assert after(some, r'start: "<tool>"') == [8]  # added, but not special: it is text
    assert after(some, "start: <unk>") == [0]


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    from tokenizers import Tokenizer, models

    from common.grammar import Tokens

    words = Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="a")).to_str()
    with pytest.raises(UserError, match="cannot be served with this model's tokenizer"):
        Tokens.of_tokenizer_json(words, (0,), 4)
