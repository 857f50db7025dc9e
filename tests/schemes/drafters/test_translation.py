"""A draft with other tokens proposes what it would in its own, and every text can be spelt."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest

from common.errors import UserError
from common.llama.model import LlamaModel, LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, StartDrafter
from edge_client.draft.group import MemberDrafter
from schemes.drafters.translation import Translation
from tests import wording
from tests.conftest import REAL_MODELS, SMOLLM2
from tests.edge_client.draft.test_group import Crowd, checker
from tests.edge_client.draft.tiny_gguf import TinyShape, finish, write_tiny_gguf
from tests.edge_client.draft.tree_world import GREEDY, SAMPLED, check_group, exact_settings, random_tree

pytestmark = pytest.mark.llama

PENALISED = SamplingParams(0.8, seed=3, repetition_penalty=1.3, logit_bias=((70, 4.0),))
SAMPLINGS = pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
LARGER = TinyShape(num_vocab=302)  # ids up to 299 stand for text

TEXTS = (
    "def add(a, b):\n    return a + b\n",
    "The naïve café — 30 °C; “quotes”, €5.\r\n\tTabs  and   runs of spaces   ",
    "你好,世界。Привет, мир! שלום עולם 🙂👩‍👩‍👧‍👦",
    "1234567890 0x1F <|im_start|> <0x0A> \u2581 \x00\x7f",
)


def permuted(source: Path, out: Path, order: Sequence[int]) -> Path:
    """Write a model whose token i is the source's token `order[i]`. Its padding is hardly ever likely."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        value, kind = field.contents(), field.types[0]
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            value = [value[place] for place in order]
        if field.name.endswith("_token_id"):
            value = list(order).index(value)
        writer.add_key_value(field.name, value, kind, field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if tensor.name == "output.weight":
            data[-1] = 0.0
        is_table = tensor.name in ("token_embd.weight", "output.weight")
        writer.add_tensor(tensor.name, data[list(order)] if is_table else data, raw_dtype=tensor.tensor_type)
    return finish(writer, out)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's vocabulary, and weights of the oracle."""
    plain = write_tiny_gguf(tmp_path_factory.mktemp("models") / "plain.gguf", LARGER)
    return permuted(plain, plain.with_name("tiny.gguf"), range(LARGER.num_vocab))


@pytest.fixture(scope="module")
def shuffled(model: Path) -> Path:
    """The same model with its tokens in another order."""
    order = np.random.default_rng(4).permutation(LARGER.num_vocab).tolist()
    return permuted(model, model.with_name("shuffled.gguf"), order)


@pytest.fixture(scope="module")
def smaller(model: Path) -> Path:
    """Another model, which lacks twenty of the target's tokens and spells each by ten of its own."""
    return write_tiny_gguf(model.with_name("smaller.gguf"), TinyShape(num_vocab=282), seed=8)


@pytest.fixture(scope="module")
def target(model: Path) -> Iterator[LlamaModel]:
    with LlamaModel(LlamaSettings(str(model)), weights=False) as words:
        yield words


@SAMPLINGS
def test_another_order_of_the_tokens_changes_no_proposal(
    shuffled: Path, target: LlamaModel, oracle: MemberDrafter, sampling: SamplingParams
) -> None:
    with LlamaRuntime(exact_settings(shuffled)) as runtime:
        random_tree(MemberDrafter(Translation(runtime, target).group(runtime, 1)), oracle, 5, sampling)


@SAMPLINGS
@pytest.mark.parametrize("seed", range(2))
def test_a_tree_with_tokens_spelt_by_several_equals_its_paths_from_scratch(
    smaller: Path, target: LlamaModel, sampling: SamplingParams, seed: int
) -> None:
    settings = exact_settings(smaller, n_ctx=2048, n_seq_max=24)
    with LlamaRuntime(settings) as runtime, LlamaRuntime(settings) as other:
        translation = Translation(runtime, target)
        assert sum(len(translation.spelling(token)) > 1 for token in range(300)) == 20
        oracle = MemberDrafter(translation.group(other, 1))
        random_tree(MemberDrafter(translation.group(runtime, 1)), oracle, seed, sampling)


def test_only_shared_tokens_are_proposed_with_the_draft_s_own_scores(
    smaller: Path, target: LlamaModel
) -> None:
    with LlamaRuntime(exact_settings(smaller)) as runtime:
        translation = Translation(runtime, target)
        text = target.tokenize("the <filler30> band", False)
        drafter = MemberDrafter(translation.group(runtime, 1))
        drafter.start(text, 1, GREEDY)
        (found,) = drafter.expand([DraftRow(1, None, text[-1], len(text) - 1)])
        own = runtime.tokenize("the <filler30> band", False)
        assert translation.text(text) == own
        runtime.clear()
        runtime.batch.fill(own, list(range(len(own))), [0] * len(own), [0] * (len(own) - 1) + [1])
        assert runtime.decode() == 0
        logits = runtime.logits(1)[0]
        names = {piece: logits[token] for token, piece in enumerate(runtime.pieces()) if piece is not None}
        expected = sorted((names[p], t) for t, p in enumerate(target.pieces()) if p in names)[:-6:-1]
        assert found.tokens == tuple(token for _, token in expected)
        np.testing.assert_allclose(found.scores, [score for score, _ in expected], atol=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_interleaved_sessions_are_answered_as_if_alone(
    shuffled: Path, target: LlamaModel, oracle: MemberDrafter, seed: int
) -> None:
    with LlamaRuntime(exact_settings(shuffled, n_ctx=1024, n_seq_max=64)) as runtime:
        group = Translation(runtime, target).group(runtime, 4)
        crowd = Crowd(group, Random(seed))
        crowd.run(60, 70, checker(oracle))
        for place in range(4):
            group.release(place)
        check_group(group)
        assert crowd.num_failed == 0


def test_an_ended_text_is_met_again_in_the_target_s_tokens(smaller: Path, target: LlamaModel) -> None:
    with LlamaRuntime(exact_settings(smaller)) as runtime:
        group = Translation(runtime, target).group(runtime, 2)
        text = list(range(20))
        drafter = MemberDrafter(group)
        drafter.start(text, 1, GREEDY)
        drafter.expand([DraftRow(1, None, text[-1], len(text) - 1)])
        group.release(0)
        assert group.num_common(0, [*text, 7]) == group.num_kept([*text, 7]) == 20
        assert group.num_common(1, text) == 0


@pytest.mark.parametrize("tokens", [(), (302,), (-1,)])
def test_tokens_outside_the_target_s_vocabulary_end_the_drafting(
    smaller: Path, target: LlamaModel, tokens: tuple[int, ...]
) -> None:
    with LlamaRuntime(exact_settings(smaller)) as runtime:
        group = Translation(runtime, target).group(runtime, 1)
        group.begin(0, StartDrafter(tokens, 1, GREEDY))
        assert group.members[0].failure is not None


def spelt(translation: Translation, draft: LlamaModel, tokens: Sequence[int]) -> bytes:
    return b"".join(draft.piece(own) for own in translation.text(tokens))


def names() -> list[object]:
    """Each pair of published files. All but SmolLM2 beside the tiny model are for `make real`."""
    known = [path.name for path in sorted(REAL_MODELS.glob("*.gguf"))]
    large = [pytest.mark.large, pytest.mark.real]
    return [
        pytest.param(SMOLLM2, "", marks=[pytest.mark.real]),
        pytest.param("", SMOLLM2, marks=[pytest.mark.real]),
        *(pytest.param(a, b, marks=large) for a in known for b in known if a != b),
    ]


@pytest.mark.parametrize(("draft_name", "target_name"), names())
def test_a_text_is_spelt_with_its_own_bytes(model: Path, draft_name: str, target_name: str) -> None:
    files = [str(REAL_MODELS / name) if name else str(model) for name in (draft_name, target_name)]
    draft, words = (LlamaModel(LlamaSettings(file), weights=False) for file in files)
    with draft, words:
        translation = Translation(draft, words)
        for text in TEXTS:
            data = text.encode()
            tokens = words.tokenize(text, False)
            begins = b"".join(map(draft.piece, draft.begin_ids))
            written = begins + b"".join(map(words.piece, tokens))  # Gemma's tokenizer changes U+2581
            assert spelt(translation, draft, tokens) == written
            assert spelt(translation, draft, [*words.begin_ids, *tokens]) == written
            pieces = [data[at : at + 2] for at in range(0, len(data), 2)]  # cut inside of characters
            assert b"".join(draft.piece(own) for piece in pieces for own in translation._spell(piece)) == data


def test_vocabularies_without_a_common_token_are_refused(model: Path) -> None:
    class Empty:
        num_vocab, special_ids, control_texts, eos_ids, begin_ids = 1, (), (), (), ()

        def pieces(self) -> list[bytes]:
            return [b"a word that no tokenizer has"]

    with LlamaRuntime(exact_settings(model)) as runtime, wording.raises(UserError):
        Translation(runtime, Empty()).group(runtime, 1)  # type: ignore[arg-type]
