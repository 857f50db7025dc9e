"""Lets a target write the texts that heads and drafts are trained on, and divides them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cloud_verifier.core.engine_protocol import IntArray, TargetEngine, TargetInfo
from common.config.setting import setting
from common.errors import UserError
from common.sampling import SamplingParams
from edge_client.formats.chat_template import ChatTemplate
from forerun.options import JsonOption
from forerun.terminal import note
from training.options import read_prompts
from training.prompts import bundled
from training.record import write_texts

if TYPE_CHECKING:
    from training.trainer import Checkpoint

T = TypeVar("T")

BATCH = 64
"""Texts that are written together. Each step reads all weights, so a few at a time cost as much as many."""

LONGEST_PROMPT = 512  # tokens; of a longer prompt its beginning
KEEP_EVERY = 60.0  # seconds in which the target writes


@dataclass(frozen=True, kw_only=True)
class TextsOptions(JsonOption):
    """Declares the prompts of a target's texts, and how torch computes."""

    prompts: Path | None = setting(
        None, "file of prompts: a JSON list of texts, or JSON lines (default: bundled ones)", "FILE"
    )
    chat: bool = setting(False, "put each prompt into the target's chat template, as a user's message")
    max_tokens: int = setting(128, "most tokens of each text", "N", low=1)
    device: str = setting("cpu", "device of torch: cpu, cuda or cuda:N")
    threads: int = setting(0, "threads of torch; 0: torch's own choice", "N")

    @property
    def num_slots(self) -> int:
        """KV slots of the texts that are written together."""
        return BATCH * (LONGEST_PROMPT + self.max_tokens + 1)

    def use_threads(self) -> None:
        """Have torch take `threads` threads from now on."""
        import torch

        if self.threads:
            torch.set_num_threads(self.threads)

    def tokenized(self, info: TargetInfo, tokenize: Callable[[str], Sequence[int]]) -> list[list[int]]:
        """Return the prompts in tokens. Raise `UserError` if the target is too short for the texts after
        them, or has no chat template for them."""
        longest = min(LONGEST_PROMPT, info.max_positions - self.max_tokens - 1)
        if longest < 1:
            raise UserError(
                f"--max-tokens is {self.max_tokens}, and the model has {info.max_positions} positions"
            )
        texts = bundled() if self.prompts is None else read_prompts(self.prompts)
        if not self.chat:
            return [list(tokenize(text)[:longest]) for text in texts]
        if info.chat is None:
            raise UserError("--chat needs a chat template, and the target has none; leave it out")
        words = {"bos_token": info.chat.bos_token, "eos_token": info.chat.eos_token}
        template = ChatTemplate(info.chat.template, words)
        shown = [template.render([{"role": "user", "content": text}]) for text in texts]
        prompts = [tokenize(text) for text in shown]
        prompts = [ids[1:] if ids[:1] == ids[1:2] else ids for ids in prompts]  # a begin token of both
        if too_long := sum(len(prompt) > longest for prompt in prompts):
            note(f"{too_long} prompts of more than {longest} tokens are left out")
        return [list(prompt) for prompt in prompts if len(prompt) <= longest]


def kept_texts(
    engine: TargetEngine,
    prompts: Sequence[Sequence[int]],
    num_texts: int,
    sampling_of: Callable[[int], SamplingParams],
    checkpoint: Checkpoint,
) -> list[IntArray]:
    """Return texts of the target behind their prompts, those of the checkpoint first. Keep them there.

    Args: sampling_of: sampling of a group of `BATCH` texts, by its number.
    """
    texts, kept_at = list(checkpoint.texts), time.monotonic()
    for text in new_texts(engine, prompts, num_texts, sampling_of, len(texts)):
        texts.append(text)
        if len(texts) == num_texts or (len(texts) % BATCH == 0 and time.monotonic() - kept_at >= KEEP_EVERY):
            checkpoint.save(texts)
            kept_at = time.monotonic()
    note(f"the target reads {len(texts)} texts, {sum(map(len, texts))} tokens")
    return texts


def new_texts(
    engine: TargetEngine,
    prompts: Sequence[Sequence[int]],
    num_texts: int,
    sampling_of: Callable[[int], SamplingParams],
    first: int = 0,
) -> Iterator[IntArray]:
    """Yield a model's texts from number `first` on, each with its prompt. Arguments as of `kept_texts`."""
    for begin in range(first, num_texts, BATCH):
        group = [prompts[at % len(prompts)] for at in range(begin, min(begin + BATCH, num_texts))]
        written = write_texts(engine, group, sampling_of(begin // BATCH), batch=BATCH)
        for prompt, text in zip(group, written, strict=True):
            yield np.array([*prompt, *text], np.int32)
        note(f"{engine.info.name} has written {begin + len(group)} of {num_texts} texts")


def divided(texts: Sequence[T], num_prompts: int, every: int) -> tuple[list[T], list[T]]:
    """Return the texts to train on, and one of `every` that is only measured: all of a prompt, if there are
    enough prompts."""
    places = [number % num_prompts if num_prompts >= every else number for number in range(len(texts))]
    is_held_out = [place % every == every - 1 for place in places]
    return (
        [text for text, is_measured in zip(texts, is_held_out, strict=True) if not is_measured],
        [text for text, is_measured in zip(texts, is_held_out, strict=True) if is_measured],
    )
