"""A vocabulary for grammars: padding is never allowed, control tokens are no text, every end token ends."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from common.errors import UserError
from common.grammar import Grammars, Tokens
from common.grammar.strings import (
    UNFORCED,
    checked,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
    unforced,
)
from common.sampling import MAX_GRAMMAR_BYTES
from tests import wording
from tests.common.grammar import vocabulary as v

pytestmark = pytest.mark.grammar

TOKENIZER = Path(__file__).parents[3] / "lab" / "demo_models" / "target" / "tokenizer.json"


def tokens(width: int = v.WIDTH) -> Tokens:
    return Tokens(v.PIECES, v.SPECIAL, v.EOS, width)


def after(some: Tokens, grammar: str, *path: int) -> list[int]:
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
    with wording.raises(UserError):
        Tokens(v.PIECES, v.SPECIAL, (), v.WIDTH)


def test_a_byte_level_tokenizer_is_read_as_the_bytes_it_stands_for() -> None:
    some = Tokens.of_tokenizer_json(TOKENIZER.read_text(), (0,), 3072)
    words = Tokenizer.from_file(str(TOKENIZER))
    text = "def f(x):\n    return {'é': x}\t# 你好"
    ids = words.encode(text).ids
    literal = "start: " + " ".join(f"/{part}/" for part in ["[^q]*"])
    assert some.tokenizer.decode_bytes(ids) == text.encode()
    assert after(some, literal, *ids)
    assert 0 in after(some, literal, *ids)


def sentencepiece() -> str:
    vocab = {"<unk>": 0, "</s>": 1, "<0x0A>": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5, "a": 6, "▁a": 7}
    model = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    model.add_special_tokens(["<unk>", "</s>"])
    model.add_tokens(["<tool>"])
    model.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return str(model.to_str())


def test_a_sentencepiece_tokenizer_is_read_as_the_bytes_it_stands_for() -> None:
    some = Tokens.of_tokenizer_json(sentencepiece(), (1,), 12)
    assert after(some, r'start: " a" "\n" "é"') == [5, 7]
    assert after(some, r'start: " a" "\n" "é"', 7) == [2]
    assert after(some, r'start: " a" "\n" "é"', 5, 6, 2) == [3]
    assert after(some, r'start: "<tool>"') == [8]  # added, but not special: it is text
    assert after(some, "start: <unk>") == [0]


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    words = Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="a")).to_str()
    with wording.raises(UserError):
        Tokens.of_tokenizer_json(words, (0,), 4)


def test_each_kind_is_made_and_can_be_compiled() -> None:
    made = (
        json_schema_grammar({"type": "integer"}),
        json_schema_grammar({"type": "object"}),
        regex_grammar("a+"),
        lark_grammar('start: "a"'),
    )
    assert [checked(grammar) for grammar in made] == list(made)


def test_a_bad_grammar_has_the_message_of_the_library() -> None:
    for schema in ({"type": "intger"}, {"default": -9223372036854775809}):
        with wording.raises(UserError):
            json_schema_grammar(schema)
    with wording.raises(UserError):
        regex_grammar("(")
    with wording.raises(UserError):
        lark_grammar("start: missing")


@pytest.mark.parametrize("grammar", ["{}", '{"grammars": []}', '{"grammars": 3}', "{grammars", '{"a": 1}'])
def test_json_that_is_no_list_of_grammars_is_refused(grammar: str) -> None:
    with wording.raises(UserError):
        checked(grammar)


def test_a_grammar_is_bounded_in_bytes_and_in_what_it_compiles_to() -> None:
    with wording.raises(UserError):
        lark_grammar(f'start: "{"é" * MAX_GRAMMAR_BYTES}"')
    with wording.raises(UserError):
        lark_grammar("start: " + "(" * 3000 + '"a"' + ")" * 3000)


def test_forcing_is_switched_off_and_nothing_else_changes() -> None:
    told = json.loads(unforced('{"grammars": [{"lark_grammar": "start: /a/"}], "max_tokens": 3}'))
    assert told == {"grammars": [{"lark_grammar": "start: /a/"}, UNFORCED], "max_tokens": 3}
    assert json.loads(unforced("start: /é/"))["grammars"] == [{"lark_grammar": "start: /é/"}, UNFORCED]
