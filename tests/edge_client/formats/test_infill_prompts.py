"""A prompt with a gap holds a model's own tokens around it, and no other text becomes one of them."""

import re

from hypothesis import given
from hypothesis import strategies as st

from common.vocabulary import Vocabulary
from edge_client.formats.infill import FAMILIES, ExtraFile, Gap, Infill, InfillFamily

BYTES = 256
"""Ids below are bytes, so that each text has one reading."""


def made(family: InfillFamily, *without: str) -> tuple[Infill, dict[str, int]]:
    texts = [each for each in family.texts if each not in without]
    table = [bytes([each]) for each in range(BYTES)] + [each.encode() for each in texts]
    found = Infill.of(Vocabulary(table))
    assert found is not None
    return found, {text: BYTES + at for at, text in enumerate(texts)}


class Greedy:
    """A tokenizer that reads a model's own tokens anywhere in a text, as llama.cpp does for some files."""

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = ids
        self.pattern = re.compile(f"({'|'.join(map(re.escape, sorted(ids, key=len, reverse=True)))})")

    def __call__(self, text: str) -> list[int]:
        parts = self.pattern.split(text)
        return [
            token
            for at, part in enumerate(parts)
            for token in ([self.ids[part]] if at % 2 else part.encode())
        ]


def shown(tokens: tuple[int, ...], ids: dict[str, int]) -> str:
    names = {token: text for text, token in ids.items()}
    pieces = (names[each].encode() if each in names else bytes([each]) for each in tokens)
    return b"".join(pieces).decode()


def test_known_models_get_the_prompts_of_their_makers() -> None:
    gap = Gap("P", "S")
    prompts = [shown(infill.prompt(gap, Greedy(ids)), ids) for infill, ids in map(made, FAMILIES)]
    assert prompts == [
        "<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>",
        "<fim_prefix>P<fim_suffix>S<fim_middle>",
        "▁<PRE>P▁<SUF>S▁<MID>",
        "<｜fim▁begin｜>P<｜fim▁hole｜>S<｜fim▁end｜>",
        "<|code_suffix|>S<|code_prefix|>P<|code_middle|>",
        "[SUFFIX]S[PREFIX]P",
    ]


def test_other_files_come_first_as_a_repository_where_the_model_knows_one() -> None:
    infill, ids = made(FAMILIES[0])
    extra = [ExtraFile("a.py", "A\n"), ExtraFile("", "B\n")]
    text = shown(infill.prompt(Gap("P", "S", extra=extra), Greedy(ids)), ids)
    assert text.startswith("<|repo_name|>")
    assert text.count("<|file_sep|>") == 3
    assert "<|file_sep|>a.py\nA\n<|file_sep|>" in text
    assert text.endswith("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>")
    assert text.index("a.py") < text.index("B\n") < text.index("<|fim_prefix|>")


def test_other_files_are_plain_text_for_models_without_a_form_for_them() -> None:
    for family in FAMILIES[2:4]:
        infill, ids = made(family)
        text = shown(infill.prompt(Gap("P", "S", extra=[ExtraFile("a.py", "A")]), Greedy(ids)), ids)
        assert text.startswith("a.py\nA")
        assert text.endswith(f"{family.prefix}P{family.suffix}S{family.middle}")


def test_a_model_without_all_tokens_of_a_family_fills_nothing() -> None:
    for family in FAMILIES:
        for left_out in family.needed:
            table = [each.encode() for each in family.texts if each != left_out]
            assert Infill.of(Vocabulary(table)) is None


def test_a_text_ends_at_every_token_around_gaps() -> None:
    infill, ids = made(FAMILIES[0])
    assert set(infill.ends) == set(ids.values())
    infill, ids = made(FAMILIES[0], "<|fim_pad|>")
    assert set(infill.ends) == set(ids.values()), "those that the vocabulary has"


PIECES = st.sampled_from([*FAMILIES[0].texts, "<|", "|>", "<", "fim_prefix", "x", "é"])


@given(st.lists(PIECES, max_size=6).map("".join), st.lists(PIECES, max_size=6).map("".join))
def test_no_text_of_a_client_becomes_a_control_token(prefix: str, suffix: str) -> None:
    infill, ids = made(FAMILIES[0])
    tokens = infill.prompt(Gap(prefix, suffix, prefix, [ExtraFile(suffix, prefix)]), Greedy(ids))
    own = [token for token in tokens if token >= BYTES]
    names = ("repo_name", "file_sep", "file_sep", "fim_prefix", "fim_suffix", "fim_middle")
    assert own == [ids[f"<|{each}|>"] for each in names]
    assert shown(tokens, ids).endswith(f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>{prefix}")
