"""Long texts have llama.cpp's tokens, in a time that grows with their length alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.llama import cuts
from common.llama import model as module
from common.llama.model import LSTRIP_ATTRIBUTE, RSTRIP_ATTRIBUTE, LlamaModel, LlamaSettings
from tests.edge_client.draft.tiny_gguf import _byte_alphabet

pytestmark = pytest.mark.llama

TYPES = gguf.TokenType


@dataclass(frozen=True)
class Tokens:
    """A vocabulary of some special tokens, of bytes, and of a few words."""

    control: tuple[str, ...]
    users: tuple[str, ...] = ()
    sentence_piece: bool = False
    adds_space: bool = False
    name: str = "tiny"
    kind: str = "gpt-2"  # of tokenizer, without `sentence_piece`
    is_cut: bool = True  # by us; else llama.cpp finds its special tokens itself

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, "llama")
        tokens, types = ["<unk>"], [TYPES.UNKNOWN]
        if self.sentence_piece:
            alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
            tokens, types = tokens + alphabet, types + [TYPES.BYTE] * 256
            words = ["▁", "a", "b", "é", "ab", "▁a", "▁ab", "b▁a", "<", "|", "\n"]
        else:
            words = [*_byte_alphabet(), "ab", "Ġa", "Ġab"]
        words = [
            word for word in words if word not in self.users
        ]  # llama.cpp aborts for a text of two tokens
        tokens += [*words, *self.control, *self.users]
        types += [TYPES.NORMAL] * len(words)
        types += [TYPES.CONTROL] * len(self.control) + [TYPES.USER_DEFINED] * len(self.users)
        writer.add_name(self.name)
        writer.add_tokenizer_model("llama" if self.sentence_piece else "gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_scores([-float(number) for number in range(len(tokens))])
        writer.add_add_space_prefix(self.adds_space)
        writer.add_add_bos_token(False)
        if not self.sentence_piece:
            writer.add_tokenizer_pre(self.kind)
            writer.add_token_merges(["a b", "Ġ a", "Ġa b"])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


PHI = "</s>", "<|endoftext|>"  # which llama.cpp looks up for a model of this name
MARKS = ("<|a|>", "<|ab|>", "<|a|>b", "<s>")
VOCABULARIES = {
    "plain": Tokens(MARKS),
    "users' own": Tokens(MARKS, ("<b>", "\n", "\n\n", "\n\n\n\n", "  ", "x<s>y", "aa", "aaa")),
    "ends that begin others": Tokens((*MARKS, ">b", "b<s"), is_cut=False),
    "a run that begins another": Tokens(MARKS, ("\n\n", "\n|"), is_cut=False),
    "sentence piece": Tokens(MARKS, ("▁▁", "\n"), sentence_piece=True),
    "sentence piece with a space": Tokens(MARKS, ("<b>",), sentence_piece=True, adds_space=True),
    "stripped": Tokens((*MARKS, *PHI), ("<b>",), sentence_piece=True, adds_space=True, name="phi-3"),
    "stripped, and users' space": Tokens((*MARKS, *PHI), ("  ", "\n"), name="phi-3", is_cut=False),
    "stripped before": Tokens((*MARKS, "<mask>"), ("aa",), kind="jina-v2-code"),
}
PARTS = [
    *(*MARKS, ">b", "b<s", "<b>", "x<s>y", "<mask>", "<unk>"),
    *("<", "|", ">", "a", "b", "x", "é", "ÿ", "\n", " ", "\t", "▁", "\U00020000", "\U0001f600"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture(scope="module", params=VOCABULARIES)
def loaded(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Tokens, LlamaModel]]:
    tokens = VOCABULARIES[request.param]
    path = tokens.write(folder / f"{len(list(folder.iterdir()))}.gguf")
    with LlamaModel(LlamaSettings(str(path)), weights=False) as model:
        yield tokens, model


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text counts as long, and every character as far enough from the next."""
    monkeypatch.setattr(module, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(cuts, "PIECE", 1)


@pytest.mark.usefixtures("short")
def test_cut_texts_have_llama_cpps_tokens(loaded: tuple[Tokens, LlamaModel]) -> None:
    tokens, model = loaded
    assert (model._control_cuts is not None) == tokens.is_cut

    @given(st.lists(st.sampled_from(PARTS), max_size=24).map("".join), st.booleans())
    def check(text: str, parse_special: bool) -> None:
        assert model.tokenize(text, parse_special) == model._ids(text.encode(), parse_special)

    check()


def test_some_of_these_vocabularies_strip_white_space(folder: Path) -> None:
    """By llama.cpp's own rules for models of this name and this tokenizer."""

    @cache
    def attributes(name: str) -> int:
        path = VOCABULARIES[name].write(folder / "strips.gguf")
        with LlamaModel(LlamaSettings(str(path)), weights=False) as model:
            found = 0
            for token in range(model.num_vocab):
                found |= model._attributes(token)
        return found

    assert attributes("stripped") & RSTRIP_ATTRIBUTE
    assert attributes("stripped before") & LSTRIP_ATTRIBUTE
    assert not attributes("plain") & (RSTRIP_ATTRIBUTE | LSTRIP_ATTRIBUTE)


@pytest.mark.parametrize(
    "text",
    ["<" * 500_000, "\U00020000" * 300_000, "\U00020000a" * 200_000, "<unused1>a" * 20_000],
    ids=["opening brackets", "bytes", "bytes between letters", "control tokens"],
)
def test_no_text_takes_time_by_its_square_or_for_each_control_token(text: str, folder: Path) -> None:
    """Uncut, each of the first three takes over five seconds."""
    many = Tokens(tuple(f"<unused{number}>" for number in range(6000)), ("<b>",), sentence_piece=True)
    with LlamaModel(LlamaSettings(str(many.write(folder / "many.gguf"))), weights=False) as model:
        begun = time.thread_time()
        model.tokenize(text, True)
        assert time.thread_time() - begun < 3
