"""Every command in the rows of docs/schemes.md runs on a small real pair, and keeps the law of its kind.

A lossless scheme writes the target's own text. A lossy rule's greedy text passes its own criterion; those of
a judge and of a second look only have to be written."""

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from cloud_verifier.engine.torch_loading import load_engine
from common.acceptance import make_acceptance
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary
from edge_client.network.channel import VerifierChannel
from forerun.cli import main
from lab import demo_models
from lab.demo_models.gguf_export import write_target
from lab.rig import own_places
from tests.edge_client.test_daemon import Daemon, Process, accepts, is_ready, ready, start, wait_until
from tests.real.test_stack import UNDRAFTED, Stack
from tests.schemes.drafters.test_eagle3 import RECORDED, checkpoint, eight_layers, save
from tests.schemes.test_rows import ROWS, Row, spans
from tests.support.ports import free_port
from tests.support.served import text_from
from tests.training.logged import fill, some_prompts

pytestmark = [
    *(pytest.mark.torch, pytest.mark.llama, pytest.mark.api, pytest.mark.grpc, pytest.mark.slow),
]

TARGET, DRAFT = str(demo_models.TARGET_DIR), str(demo_models.DRAFT_GGUF)
PROMPT = "def parse_header(line):\n"
WARM: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 3, "ignore_eos": True}
COLD = {**WARM, "temperature": 0.0}
LOSSY = ("bild", "topk-gap", "typical", "judge", "reflective:0.3", "lenience", "contrastive")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that commands of the rows need."""
    folder = tmp_path_factory.mktemp("rows")
    prompts = [entry["text"] for entry in json.loads(demo_models.PROMPTS.read_text(encoding="utf-8"))]
    (folder / "prompts.json").write_text(json.dumps(prompts[:8]), encoding="utf-8")
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.py").write_text(PROMPT * 20, encoding="utf-8")
    words = ["--tasks", str(folder / "prompts.json"), *SMALL["judge"]]
    assert main(["judge", "train", *words, "--out", str(folder / "judge.json")]) == 0
    return folder


@dataclass
class Verifiers:
    """Starts verifiers of the small target, and ends them."""

    root: Path
    running: list[Process]

    def start(self, *options: str, model: str = TARGET) -> str:
        """Return the address of one more."""
        address = f"127.0.0.1:{free_port()}"
        process = start("verify", "--model", model, "--listen", address, "--threads", "1", *options)
        self.running.append(process)
        wait_until(lambda: accepts(address), process)
        return address

    def edge(self, address: str, name: str, *options: str) -> Stack:
        """Return a daemon with further options and places of its own."""
        places = own_places(self.root / name)
        draft = () if "--draft" in options else ("--draft", DRAFT)
        daemon = ready("--verifier", address, *draft, *options, **places)
        self.running.append(daemon.process)
        return Stack(address, self.running[0], daemon)


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifiers]:
    found = Verifiers(tmp_path_factory.mktemp("places"), [])
    yield found
    assert [process.end() for process in reversed(found.running)] == [0] * len(found.running)


@pytest.fixture(scope="module")
def stack(verifiers: Verifiers, folder: Path) -> Stack:
    """A verifier that allows every rule, and a daemon."""
    allowed = [word for rule in LOSSY for word in ("--allow-rule", rule.partition(":")[0])]
    address = verifiers.start(*allowed, "--judge", str(folder / "judge.json"))
    return verifiers.edge(address, "plain")


@pytest.fixture(scope="module")
def own(stack: Stack) -> dict[float, str]:
    """The target's own text, by temperature."""
    return {each["temperature"]: text(stack, **each, **UNDRAFTED) for each in (COLD, WARM)}


def text(stack: Stack, **fields: Any) -> str:
    answer = stack.post("/v1/completions", prompt=PROMPT, **fields)
    written: str = answer["choices"][0]["text"]
    return written


def writes_the_targets(stack: Stack, own: dict[float, str], **ours: Any) -> None:
    for asked in (COLD, WARM):
        assert text(stack, **asked, forerun=ours) == own[asked["temperature"]], (ours, asked)


# Policies and rules ----------------------------------------------------------------------------------------

POLICIES = [each.split()[1] for row in ROWS for each in spans(row.runs_as) if each.startswith("--policy")]
RULES = [each.split()[1] for row in ROWS for each in spans(row.runs_as) if each.startswith("--acceptance")]


@pytest.mark.parametrize("policy", sorted(set(POLICIES)))
def test_a_policys_text_is_the_targets(stack: Stack, own: dict[float, str], policy: str) -> None:
    writes_the_targets(stack, own, policy=policy)


def law_of(prompt: Sequence[int], tokens: Sequence[int]) -> Any:
    """The target's log-probabilities [N, V] of a text's tokens at temperature 1."""
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.double(), dim=-1).numpy()


def passes(rule: str, logprobs: Any, token: int) -> bool:
    """Whether a rule's own criterion lets a token pass that is not the target's best."""
    behind, options = float(logprobs.max() - logprobs[token]), make_acceptance(rule)
    match rule.partition(":")[0]:
        case "bild":
            return bool(-logprobs[token] <= options.rollback)
        case "topk-gap":
            return int((logprobs > logprobs[token]).sum()) < options.top and behind <= options.gap
        case "contrastive":
            return behind <= 1e-6 - math.log(options.alpha)
        case "judge" | "reflective":  # by hidden states, and by a second look
            return True
        case _:
            return False


@pytest.mark.parametrize("rule", sorted(set(RULES)))
def test_a_rules_text_passes_its_criterion(stack: Stack, own: dict[float, str], rule: str) -> None:
    asked = {"forerun": {"policy": "sync:4", "acceptance": rule}}
    assert text(stack, **WARM, **asked)
    if not make_acceptance(rule).decides(greedy=True):
        assert text(stack, **COLD, **asked) == own[0.0]
        return
    words = AutoTokenizer.from_pretrained(TARGET)
    ids = {words.decode([token]): token for token in range(len(words))}
    answer = stack.post("/v1/completions", prompt=PROMPT, logprobs=1, **COLD, **asked)
    tokens = [ids[word] for word in answer["choices"][0]["logprobs"]["tokens"]]
    prompt = words(PROMPT, add_special_tokens=False)["input_ids"]
    for token, logprobs in zip(tokens, law_of(prompt, tokens), strict=True):
        assert token == int(logprobs.argmax()) or passes(rule, logprobs, token)


# Commands --------------------------------------------------------------------------------------------------

SMALL = {
    "heads": ("--texts", "32", "--max-tokens", "16", "--threads", "1"),
    "align": ("--texts", "16", "--max-tokens", "16", "--threads", "1"),
    "judge": ("--answer", "wc -l", "--max-tokens", "32", "--threads", "1"),
}
"""Options by which a command takes seconds."""

COMMANDS = [row for row in ROWS if any(each.startswith("forerun ") for each in spans(row.runs_as))]


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.system)
def test_a_rows_commands_run_one_after_the_other(
    verifiers: Verifiers, stack: Stack, own: dict[float, str], folder: Path, row: Row
) -> None:
    place = folder / str(ROWS.index(row))
    place.mkdir()
    for what in spans(row.runs_as):
        if what.startswith("forerun "):
            Commands(verifiers, stack, own, folder, place).run(what.split()[1:])


@dataclass(frozen=True)
class Commands:
    """Runs the commands of one row, which find each other's files."""

    verifiers: Verifiers
    stack: Stack
    own: dict[float, str]
    folder: Path
    place: Path  # of the row's files

    def run(self, words: list[str]) -> None:
        match words[0]:
            case "verify" if words[-1] in ("FOLDER", "mtp"):
                self.verify_another(words[-1])
            case "verify":
                self.verify(self.completed(words)[1:])
            case "edge":
                self.edge(*self.completed(words)[1:])
            case "local":
                self.local(self.completed(words)[1:])
            case "align":
                self.align(words)
            case "index":
                self.index()
            case "fit":
                recorded = str(self.place / "r.jsonl")
                assert main(["record", "--out", recorded, "--max-tokens", "16", "--ignore-eos"]) == 0
                assert main(["fit", recorded]) == 0
            case "heads" if words[1] == "train":
                assert main([*self.logged(words), *SMALL["heads"], "--steps", "2", "--depth", "2"]) == 0
            case "heads":
                own = ("--prompts", str(self.folder / "prompts.json"), "--max-tokens", "16", "--threads", "1")
                assert main([*self.completed(words), *own]) == 0
            case "simulate":
                assert main([*words, "--json"]) == 0
            case _:
                assert main([*self.completed(words), *SMALL[words[0]]]) == 0

    def completed(self, words: Sequence[str]) -> list[str]:
        """Return the words with real files in place of their capitals."""
        files = {
            "--model": TARGET,
            "--target": TARGET,
            "--prompts": str(self.folder / "prompts.json"),
            "--tasks": str(self.folder / "prompts.json"),
            "--tokens": str(self.folder / "target.gguf"),
            "--log": str(self.place / "log"),
        }
        out, found = str(self.place / "out"), list[str]()
        for word in words:
            if word.isupper() and word.isalpha() and word != "O":
                found.append(files.get(found[-1], DRAFT))
            else:
                found.append(word[:-1] + out if word == "O" or word.endswith(":O") else word)
        if "--tokens" in found and not (self.folder / "target.gguf").exists():
            write_target(self.folder / "target.gguf")
        return found

    def logged(self, words: Sequence[str]) -> list[str]:
        """Return the completed words, with a log of texts if they name one."""
        found = self.completed(words)
        if "--log" in found:
            fill_log(self.place / "log")
            found.remove("--follow")  # which goes on for good; tests/training/test_following.py
        return found

    def verify(self, options: Sequence[str]) -> None:
        """The verifier's own drafts change no text of a device that drafts nothing."""
        address = self.verifiers.start(*options)
        for asked in (COLD, WARM):
            assert written(address, asked) == written(self.stack.address, asked)

    def verify_another(self, drafter: str) -> None:
        """The same with a target that has a drafter of this kind."""
        model = (
            checkpoint("mellum", self.place, max_position_embeddings=512)
            if drafter == "mtp"
            else str(self.place)
        )
        if drafter == "FOLDER":
            whole = eight_layers().module
            whole.config.max_position_embeddings = 512
            whole.save_pretrained(self.place)
            (head := self.place / "head").mkdir()
            drafter = save(head, next(iter(RECORDED.values())))
        letters = {chr(65 + token): token for token in range(97)}
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(letters, "A"))).save_pretrained(model)
        plain, drafted = (
            self.verifiers.start(model=model),
            self.verifiers.start("--drafter", drafter, model=model),
        )
        for asked in (COLD, WARM):
            assert written(drafted, asked, (5, 9, 2)) == written(plain, asked, (5, 9, 2))

    def edge(self, *options: str) -> None:
        """The device's sources change no text."""
        name = f"{self.place.name}{options[0]}"
        writes_the_targets(self.verifiers.edge(self.stack.address, name, *options), self.own)

    def index(self) -> None:
        places = own_places(self.verifiers.root / f"{self.place.name}--index")  # as `edge` names them
        environment = {**os.environ, **places}
        words = ("index", "--name", "project", "--draft", DRAFT, str(self.folder / "notes"))
        subprocess.run([sys.executable, "-m", "forerun", *words], env=environment, check=True)

    def local(self, options: Sequence[str]) -> None:
        places, address = own_places(self.verifiers.root / "local"), f"127.0.0.1:{free_port()}"
        process = start("local", *options, "--listen", address, "--threads", "1", **places)
        self.verifiers.running.append(process)
        daemon = Daemon(process, Path(places["XDG_STATE_HOME"]) / "forerun", address)
        wait_until(lambda: is_ready(daemon), process)
        writes_the_targets(Stack("", process, daemon), self.own)

    def align(self, words: Sequence[str]) -> None:
        """A draft after one update is a draft."""
        found, out = self.logged(words), self.place / "out"
        more = () if "--updates" in found else ("--updates", "1")
        given = (
            () if "--log" in found else ("--target", TARGET, "--prompts", str(self.folder / "prompts.json"))
        )
        if "--trim" in found:
            found[found.index("--trim") + 1] = "1024"  # the small vocabulary has 3,072
        assert main([*found, *given, *SMALL["align"], *more]) == 0
        tokens = self.completed(["--tokens", "T"]) if "--trim" in found else ()
        self.edge("--draft", str(out), *tokens)


def fill_log(folder: Path) -> None:
    """Let a verifier's scheduler log texts."""
    engine, _ = load_engine(TARGET, 4096)
    words = AutoTokenizer.from_pretrained(TARGET)
    prompts = [words(prompt, add_special_tokens=False)["input_ids"] for prompt in some_prompts(16)]
    fill(folder, engine, prompts, SamplingParams(0.8, max_tokens=16, ignore_eos=True))


def written(address: str, asked: Mapping[str, Any], prompt: Sequence[int] = ()) -> list[int]:
    """What a verifier writes for a device without drafts."""

    async def text() -> list[int]:
        async with VerifierChannel(address) as channel:
            table = (await channel.describe(include_vocabulary=True)).vocabulary
        assert table is not None
        ids = prompt or AutoTokenizer.from_pretrained(TARGET)(PROMPT, add_special_tokens=False)["input_ids"]
        return await text_from(address, ids, SamplingParams(**asked), Vocabulary(tuple(table)).fingerprint)

    return asyncio.run(text())
