"""Takes lessons from texts that a verifier kept (`forerun verify --training-log`)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from common.config.setting import REQUIRED, setting
from common.errors import UserError
from forerun.terminal import note
from schemes.training_log.records import LoggedText, LogKey, LogReader
from training.options import check_out
from training.target_texts import LONGEST_PROMPT, TextsOptions

if TYPE_CHECKING:
    from cloud_verifier.core.engine_protocol import FloatArray
    from training.lessons import Lesson

HELD_OUT_EVERY = 8
"""Every so many prompts are held out: their texts are only measured. In a log a hash says which, so no
training sees what another one measures."""

LEAST_REST = (
    1e-6  # probability of tokens that are not listed; float16 may round the sum of the others up to 1
)


class TooFewTextsError(UserError):
    """The log has no text to train on, or none to measure."""


@dataclass(frozen=True, kw_only=True)
class LogOptions(TextsOptions):
    """Declares a training, and a log of texts, which may stand in for prompts. The option `START` names the
    file to begin with."""

    START: ClassVar[str]
    SUFFIX: ClassVar[str]

    out: Path = setting(REQUIRED, "file for the result, or with --follow a folder", "PATH")
    texts: int = setting(256, "texts that the target writes, or the newest of --log", "N", low=HELD_OUT_EVERY)
    log: Path | None = setting(
        None, "verifier's --training-log, or a tenant's part of it, whose texts to take", "FOLDER"
    )
    log_key: Path | None = setting(None, "key of an encrypted log", "FILE")
    follow: bool = setting(
        False, "train whenever --texts new ones are in the log, for good, into the folder --out"
    )
    margin: float = setting(
        0.01, "rise of the share of choices held out for which --follow publishes", "SHARE", low=0
    )

    def check_log(self) -> None:
        """Raise `UserError` for options that do not go with a log, or without one."""
        if self.log is None and (self.follow or self.log_key is not None):
            raise UserError("--follow and --log-key need --log, a folder of texts")
        if self.log is not None and (self.prompts is not None or self.chat):
            raise UserError("--prompts and --chat are for a target; --log has its own, so leave them out")
        if self.log is not None:
            self.reader()  # folder and key are checked
        if not self.follow:
            check_out(self.out)
        elif not self.out.is_dir():
            raise UserError(
                f"--out is {self.out}; with --follow it is the folder where results are published"
            )

    def reader(self) -> LogReader:
        """Return the log's reader. Raises `UserError`."""
        assert self.log is not None, "checked"
        return LogReader(self.log, None if self.log_key is None else LogKey(self.log_key))


def logged_lessons(
    options: LogOptions, draft: Path, temperature: float
) -> tuple[list[Lesson], list[Lesson], dict[int, float]]:
    """Return what the newest texts teach a draft at a temperature, to train on and to measure, and the
    milliseconds of the target's steps by their rows. Raises `UserError` as `logged_texts`."""
    from common.llama.model import LlamaModel, LlamaSettings
    from common.vocabulary import Vocabulary

    with LlamaModel(LlamaSettings(str(draft)), weights=False) as words:
        fingerprint, begin = Vocabulary(words.token_table()).fingerprint, words.begin_ids
    parts = logged_texts(options, fingerprint, str(draft))
    taught, held_out = (
        [_lesson(text, begin, options.max_tokens, temperature) for text in part] for part in parts
    )
    return taught, held_out, {1: median(text.step_time for part in parts for text in part) * 1e3}


def logged_texts(
    options: LogOptions, fingerprint: bytes, model: str
) -> tuple[list[LoggedText], list[LoggedText]]:
    """Return the newest texts of one target, to train on and to measure. Raises `UserError` if none is of the
    vocabulary with this fingerprint, which `model` has."""
    reader = options.reader()
    texts, _ = reader.newest(options.texts)
    fitting = [text for text in texts if text.fingerprint == fingerprint]
    if texts and not fitting:
        raise UserError(
            f"the texts in {options.log} are of {texts[-1].model}, and {model} has other tokens; give a "
            "model of that vocabulary"
        )
    kept = [text for text in fitting if text.model == fitting[-1].model]
    for number, what in (
        (reader.num_damaged, "damaged records"),
        (reader.num_closed, "texts of another key"),
        (len(texts) - len(kept), "texts of other targets"),
    ):
        if number:
            note(f"{number} {what} in {options.log} are left out")
    held_out = [text for text in kept if is_held_out(text)]
    taught = [text for text in kept if not is_held_out(text)]
    if not taught or not held_out:
        raise TooFewTextsError(
            f"{options.log} has {len(taught)} texts to train on and {len(held_out)} to measure; wait for more"
        )
    return taught, held_out


def is_held_out(text: LoggedText) -> bool:
    """Tell whether a text is only measured. It depends on its prompt, or without one on the text."""
    return zlib.crc32((text.prompt if len(text.prompt) else text.tokens).tobytes()) % HELD_OUT_EVERY == 0


def _lesson(text: LoggedText, begin: Sequence[int], max_tokens: int, temperature: float) -> Lesson:
    """Return what a text teaches. Without a prompt it stands behind the tokens `begin` of any text, and its
    first token, which the prompt decided, teaches nothing."""
    from training.lessons import Lesson

    before, untaught = text.prompt[-LONGEST_PROMPT:], 0
    if not len(before):
        before, untaught = np.array(begin, np.int32), 1
    return Lesson(
        np.concatenate((before, text.tokens[:max_tokens][:-1])),
        len(before) - 1 + untaught,
        text.best[untaught:max_tokens],
        at_temperature(text.logprobs[untaught:max_tokens], temperature),
    )


def at_temperature(logprobs: FloatArray, temperature: float) -> FloatArray:
    """Return log-probabilities [T, K] of the likeliest tokens at another temperature than 1. All other tokens
    count as if each were as likely as the last one listed."""
    scaled = logprobs / temperature
    rest = np.log(np.clip(1.0 - np.exp(logprobs).sum(axis=1), LEAST_REST, 1.0))
    total = np.logaddexp(
        np.logaddexp.reduce(scaled, axis=1), rest + (1.0 / temperature - 1.0) * logprobs[:, -1]
    )
    result: FloatArray = (scaled - total[:, None]).astype(np.float32)
    return result
