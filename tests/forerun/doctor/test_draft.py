"""The draft's checks: a file that is none, one that is damaged, one that works."""

import asyncio
from pathlib import Path

import pytest

from common.llama.files import hash_of
from common.llama.load_trial import ModelTrials
from common.llama.model import LlamaSettings
from common.llama.runtime import LlamaRuntime
from common.sampling import SamplingParams
from edge_client.core.effects import DraftRow, Reroot
from edge_client.draft.group import DraftGroup, MemberDrafter
from edge_client.draft.shared_model import PARALLEL
from edge_client.settings import DraftSection
from forerun.doctor.device import Finding, Level
from forerun.doctor.draft import LoadedDraft, MeasuredPair, check_draft, draft_steps, find_file
from tests.edge_client.draft.tiny_gguf import TinyShape, write_copy, write_tiny_gguf
from tests.edge_client.draft.tree_world import exact_settings
from tests.support.tiny import running


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("draft") / "tiny.gguf")


def level(path: Path | str, sha256: str = "") -> Level:
    return find_file(DraftSection(model=str(path), sha256=sha256))[1].level


def test_a_file_is_there_is_gguf_and_hashes_as_it_should(tmp_path: Path) -> None:
    assert level("") is Level.FAIL
    assert level(tmp_path / "none") is Level.FAIL
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"no model")
    assert level(path) is Level.FAIL
    path.write_bytes(b"GGUF and some more of them")
    assert level(path) is Level.OK
    assert level(path, hash_of(path).upper()) is Level.OK
    assert level(path, "0" * 64) is Level.FAIL
    assert find_file(DraftSection(model=str(path), sha256="0" * 64))[0] == "", "it is not loaded"


def findings_of(path: Path, address: str = "", tokens: str = "") -> tuple[dict[str, Finding], MeasuredPair]:
    """Run all checks. The texts have an event loop of their own."""
    draft, found = DraftSection(model=str(path), context=512, tokens=tokens), dict[str, Finding]()
    checks = check_draft(draft, ModelTrials(), address, None)
    while True:
        try:
            finding = next(checks)
            found[finding.name] = finding
        except StopIteration as over:
            return found, over.value


@pytest.mark.llama
def test_a_draft_that_works_is_timed(tiny: Path) -> None:
    findings, measured = findings_of(tiny)
    assert findings["draft loads"].level is Level.OK
    assert findings["tokenizer"].level is Level.SKIP
    assert (measured.draft_time or 0.0) > 0


@pytest.mark.llama
def test_a_parallel_draft_says_several_tokens_a_step(tiny: Path, tmp_path: Path) -> None:
    parallel = write_copy(tmp_path / "parallel.gguf", tiny, {PARALLEL: "290,291"})
    for path, levels in ((tiny, 1), (parallel, 3)):
        with LlamaRuntime(exact_settings(path)) as runtime:
            assert LoadedDraft(runtime, runtime, None).levels == levels


@pytest.mark.llama
def test_a_damaged_draft_ends_no_process_of_ours(tiny: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    findings, measured = findings_of(cut)
    assert findings["draft loads"].level is Level.FAIL
    assert measured == MeasuredPair()


@pytest.mark.llama
def test_what_a_draft_with_other_tokens_reaches_is_reported(tiny: Path, tmp_path: Path) -> None:
    larger = write_tiny_gguf(tmp_path / "larger.gguf", TinyShape(num_vocab=400))
    findings, _ = findings_of(tiny, tokens=str(larger))
    assert "299 of the target's 399 tokens (75%)" in findings["translation"].words


@pytest.mark.llama
@pytest.mark.grpc
async def test_another_tokenizer_is_named_by_its_first_token(tiny: Path) -> None:
    async with running() as system:
        findings, measured = await asyncio.to_thread(findings_of, tiny, system.address)
    assert findings["tokenizer"].level is Level.FAIL
    assert "the draft's tokenizer is not the target's: id 0 is" in findings["tokenizer"].words
    assert measured.step_time is None


@pytest.mark.llama
@pytest.mark.grpc
def test_a_verifier_that_goes_away_is_told(tiny: Path) -> None:
    findings, measured = findings_of(tiny, "127.0.0.1:1")
    assert (measured.draft_time or 0.0) > 0, "what was found out before stands"
    assert findings["texts"].level is Level.FAIL
    assert findings["texts"].advice
    assert "cannot be reached" in findings["texts"].words


@pytest.mark.llama
@pytest.mark.grpc
def test_texts_that_take_too_long_have_a_remedy(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.doctor.draft.LONGEST", 0.0)
    findings, _ = findings_of(tiny, "127.0.0.1:1")
    assert findings["texts"].level is Level.FAIL
    assert findings["texts"].advice


@pytest.mark.llama
@pytest.mark.grpc
async def test_the_draft_is_ranked_by_the_targets_own_text(tiny: Path) -> None:
    """The walk counts how often the draft's best token is the text's: on its own greedy text, always."""
    with LlamaRuntime(LlamaSettings(str(tiny), n_ctx=512)) as runtime:
        drafter = MemberDrafter(DraftGroup(runtime, 1))
        prompt = tuple(runtime.tokenize("the and", True))
        drafter.start(prompt, 1, SamplingParams())
        way = list(prompt)
        for number in range(1, 13):
            (expansion,) = drafter.expand([DraftRow(number, None, way[-1], len(way) - 1)])
            way.append(expansion.tokens[0])
            drafter.reroot(Reroot(((number + 1, way[-1]),), ()))
        own = tuple(way[len(prompt) :])
        loaded = LoadedDraft(runtime, runtime, None)
        found = draft_steps(loaded, prompt, own)
        others = draft_steps(loaded, prompt, tuple((token + 1) % 256 for token in own))
    assert found[1] == 1.0
    assert others[1] < 1.0
