"""Implements `forerun judge`: trains a judge for the lossy rule `judge`, and measures lossy rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from common.acceptance import COUPLED, make_acceptance
from common.config.command_line import add_command
from common.config.setting import REQUIRED, setting
from common.errors import UserError
from common.sampling import SamplingParams
from common.vocabulary import Vocabulary, explain_mismatch
from edge_client.core.effects import DraftRow, Reroot
from edge_client.core.policies import make_policy
from edge_client.formats.detokenizer import spelled
from edge_client.process.client import connect
from edge_client.texts.events import TextAdded, TextEnded
from forerun.chat.answer import answer
from forerun.chat.asking import TEXT_PATH
from forerun.options import JsonOption, PlaceOption, write_out
from forerun.terminal import note, table
from schemes.rules.trained_judge import FloatArray
from training import demo_pair
from training.judging import ANSWERS, AnswerOf, Fit, Tokens, answers_by, fit, mine
from training.options import check_out, open_draft, read_prompts
from training.record import BATCH, write_texts
from training.session_drafter import SessionDrafter

if TYPE_CHECKING:
    from cloud_verifier.engine.torch_engine import TorchEngine
    from common.llama.runtime import LlamaRuntime

DESCRIPTION = """\
A judge lets pass tokens of the draft that the target would not have written, where the answer does not depend
on them (AutoJudge). The rule is lossy, and a judge is good for tasks like those that it was trained on."""

TRAIN = """\
Let the target answer tasks, put the draft's tokens in the place of its own, and see which of them change the
answer. Train a judge to tell these apart.

  forerun judge train --tasks tasks.json --answer number --out judge.json
  forerun verify --model path/to/model --allow-rule judge --judge judge.json
  curl http://127.0.0.1:8080/v1/completions ... "forerun": {"acceptance": "judge"}"""

CHECK = """\
Let the running daemon answer tasks by the target alone and under acceptance rules. Report how many tokens a
target step brings, how many texts and answers are not the target's, and how many tasks have an answer.

  forerun verify --model path/to/model --allow-rule judge --allow-rule bild --judge judge.json
  forerun judge check --tasks others.json --answer number --acceptance judge bild:2"""


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(JsonOption):
    """Declares the tasks. Raises `UserError` before the slow loading."""

    tasks: Path = setting(REQUIRED, "file of tasks: a JSON list of prompts, or JSON lines", "FILE")
    answer: str = setting(
        REQUIRED,
        f"what finds the answer in a text: {', '.join(ANSWERS)} (Python functions that pass theirs), or a "
        "program that reads prompt and text and prints the answer or nothing",
        "WHAT",
    )
    max_tokens: int = setting(256, "most tokens of each text", "N", low=1)

    def __post_init__(self) -> None:
        answers_by(self.answer)


@dataclass(frozen=True, kw_only=True)
class JudgeTrainOptions(JudgeOptions):
    """Declares a training. Raises `UserError`."""

    target: str = setting(str(demo_pair.TARGET_DIR), "folder or hub id of the target model", "PATH")
    draft: str = setting(str(demo_pair.DRAFT_GGUF), "draft model: GGUF file or hf://...", "PATH")
    out: Path = setting(REQUIRED, "file for the judge, JSON", "FILE")
    recall: float = setting(
        0.9, "least share of important mismatches that the judge rejects", "R", above=0, high=1
    )
    law_only: bool = setting(
        False, "a judge that reads no hidden states, for GGUF targets and deterministic ones"
    )
    device: str = setting("cpu", "device of the target: cpu or cuda")
    threads: int = setting(0, "threads of both models; 0: their own choice", "N")
    context: int = setting(4096, "most tokens of a prompt and its text together", "N")

    def __post_init__(self) -> None:
        JudgeOptions.__post_init__(self)
        check_out(self.out)


@dataclass(frozen=True, kw_only=True)
class JudgeCheckOptions(JudgeOptions, PlaceOption):
    """Declares a measurement. Raises `UserError`."""

    acceptance: tuple[str, ...] = setting(("judge",), "acceptance rules, with settings", "RULE", nargs="+")
    policy: str = setting("sync:8", "growth policy of the edge", "POLICY")

    def __post_init__(self) -> None:
        JudgeOptions.__post_init__(self)
        make_policy(self.policy)
        for each in self.acceptance:
            make_acceptance(each)


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "judge", "train a judge of mismatches, and measure lossy rules", description=DESCRIPTION
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_command(actions, "train", "train a judge on tasks with answers", _train, JudgeTrainOptions, TRAIN)
    add_command(actions, "check", "measure what lossy rules gain and lose", _check, JudgeCheckOptions, CHECK)


# Training ---------------------------------------------------------------------------------------------------


class LoadedPair:
    """Implements `JudgedPair` by the engine of `forerun verify` and a draft of llama.cpp."""

    def __init__(
        self, engine: TorchEngine, drafter: SessionDrafter, runtime: LlamaRuntime, options: JudgeTrainOptions
    ) -> None:
        self._engine, self._drafter, self._runtime = engine, drafter, runtime
        self._sampling, self._law_only = SamplingParams(max_tokens=options.max_tokens), options.law_only

    def write(self, prefixes: Sequence[Tokens]) -> list[Tokens]:
        ends = self._engine.info.eos_token_ids
        going = [prefix for prefix in prefixes if prefix[-1] not in ends]
        written = iter(write_texts(self._engine, going, self._sampling))
        return [() if prefix[-1] in ends else tuple(next(written)) for prefix in prefixes]

    def mismatch(self, prompt: Tokens, text: Tokens, start: int) -> tuple[int, int] | None:
        if start >= len(text):
            return None
        ids = count(1)
        tip, before = next(ids), (*prompt, *text[:start])
        self._drafter.start(before, tip, self._sampling)
        last = before[-1]
        for place, token in enumerate(text[start:], start):
            (said,) = self._drafter.expand([DraftRow(tip, None, last, len(prompt) + place - 1)])
            if len(said.tokens) and said.tokens[0] != token:
                return place, int(said.tokens[0])
            tip, last = next(ids), token
            self._drafter.reroot(Reroot(((tip, token),), ()))
        return None

    def view(self, tokens: Tokens, token: int) -> tuple[FloatArray, FloatArray | None]:
        import torch

        from cloud_verifier.engine.torch_engine import last_hidden

        target = self._engine.model
        with torch.inference_mode(), target.plain(), last_hidden(target) as states:
            logits = target.plain_logits((*tokens, token), 2)[0].double().cpu().numpy()
        weights = np.exp(logits - logits.max())
        return weights / weights.sum(), None if self._law_only else states[0][0, -1].double().cpu().numpy()

    def words(self, tokens: Tokens) -> str:
        ends = self._engine.info.eos_token_ids
        return spelled(self._runtime, [token for token in tokens if token not in ends])


def _train(options: JudgeTrainOptions) -> int:
    from cloud_verifier.engine.torch_loading import load_engine
    from common.llama.model import LlamaSettings
    from edge_client.draft.group import DraftGroup, MemberDrafter

    tasks = read_prompts(options.tasks)
    note("loading the draft model and the target model")
    settings = LlamaSettings(options.draft, n_ctx=options.context, threads=options.threads)
    with open_draft(settings) as runtime:
        if options.threads:
            import torch

            torch.set_num_threads(options.threads)
        slots, dtype = BATCH * options.context, "float32" if options.device == "cpu" else "auto"
        engine, words = load_engine(options.target, slots, dtype=dtype, device=options.device)
        edge = Vocabulary(runtime.token_table())
        if edge.fingerprint != engine.info.fingerprint:
            raise UserError(explain_mismatch(edge, Vocabulary(list(words))))
        pair = LoadedPair(engine, MemberDrafter(DraftGroup(runtime, 1)), runtime, options)
        prompts = [tuple(runtime.tokenize(task, True)) for task in tasks]
        fitted = fit(mine(pair, prompts, answers_by(options.answer), note), options.recall)
    about = {"target": options.target, "draft": options.draft, "answer": options.answer, "tasks": len(tasks)}
    write_out("the judge", options.out, fitted.judge.to_json(**about))
    report = {**asdict(fitted), "out": str(options.out)}
    print(json.dumps(report) if options.json else _trained(options, fitted))
    return 0


def _trained(options: JudgeTrainOptions, fitted: Fit) -> str:
    return (
        f"{options.out}: trained on {fitted.num_trained} mismatches. Of {fitted.num_held_out} others "
        f"{fitted.important:.0%} are important; the judge rejects {fitted.recall:.0%} of these and lets "
        f"{fitted.passed:.0%} of the rest pass (area under the ROC {fitted.area:.2f})."
    )


# Checking ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JudgedText:
    """Holds a text of the whole system."""

    text: str
    num_tokens: int
    num_steps: int  # of the target


@dataclass(frozen=True, slots=True)
class RuleFigures:
    """Holds what one rule does on all tasks."""

    rule: str
    tokens_per_step: float  # committed tokens per target step
    texts_changed: float  # share of texts that are not the target's
    answers_changed: float  # share of answers that are not the target's, of tasks that the target answers
    answered: float  # share of tasks with an answer


def _check(options: JudgeCheckOptions) -> int:
    figures = _measure(options, read_prompts(options.tasks))
    if options.json:
        print(json.dumps([asdict(each) for each in figures]))
        return 0
    titles = ("rule", "tokens a step", "texts changed", "answers changed", "answered")
    rows = (
        (
            each.rule,
            f"{each.tokens_per_step:.2f}",
            f"{each.texts_changed:.1%}",
            f"{each.answers_changed:.1%}",
            f"{each.answered:.1%}",
        )
        for each in figures
    )
    print("\n".join(table(titles, rows, left=("rule",))))
    return 0


def _measure(options: JudgeCheckOptions, tasks: Sequence[str]) -> list[RuleFigures]:
    answer_of, figures, own = answers_by(options.answer), list[RuleFigures](), list[JudgedText]()
    for rule in (COUPLED.title, *options.acceptance):
        note(f"{len(tasks)} tasks under {rule}")
        texts = [_written(task, rule, options) for task in tasks]
        own = own or texts
        figures.append(_figures(rule, tasks, own, texts, answer_of))
    return figures


def _written(task: str, rule: str, options: JudgeCheckOptions) -> JudgedText:
    """Let the daemon write a text, without text that it looks up."""
    body = {"prompt": task, "stream": True, "temperature": 0, "max_tokens": options.max_tokens}
    ours = {"origins": True, "policy": options.policy, "recall": False, "acceptance": rule}
    text, num_tokens = "", 0
    for event in answer(connect(options.paths.daemon), TEXT_PATH, body | {"forerun": ours}):
        match event:
            case TextAdded():
                text += event.text
                num_tokens += sum(span.num_tokens for span in event.spans)
            case TextEnded():
                return JudgedText(text, num_tokens, event.figures["target_steps"])
    raise AssertionError("a text that fails raises")


def _figures(
    rule: str,
    tasks: Sequence[str],
    own: Sequence[JudgedText],
    written: Sequence[JudgedText],
    answer_of: AnswerOf,
) -> RuleFigures:
    """Compare the texts under a rule with the target's `own`."""
    answers = [answer_of(task, each.text) for task, each in zip(tasks, written, strict=True)]
    right = [answer_of(task, each.text) for task, each in zip(tasks, own, strict=True)]
    pairs = [pair for pair in zip(right, answers, strict=True) if pair[0] is not None]
    if not pairs:
        raise UserError("the target's own texts have no answer to any task; give other tasks or --answer")
    return RuleFigures(
        rule,
        sum(each.num_tokens for each in written) / sum(each.num_steps for each in written),
        fmean(each.text != other.text for each, other in zip(written, own, strict=True)),
        fmean(one != other for one, other in pairs),
        fmean(answer is not None for answer in answers),
    )
