"""Reads what a checkpoint says of itself without its weights, from a folder or a Hugging Face hub id.

transformers reads the files. Neither weights nor torch are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from http.client import HTTPException
from ssl import SSLError
from typing import Any, TypeVar, cast
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from huggingface_hub import constants, snapshot_download
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from cloud_verifier.core.engine_protocol import Chat, TargetInfo
from cloud_verifier.model_source import WHAT_TO_GIVE, folder_of
from common.errors import UserError
from common.grammar import Tokens
from common.sampling import NO_ADVICE, SamplingDefaults, SamplingParams
from common.vocabulary import Vocabulary
from common.wire.bounds import MAX_TEMPLATE_BYTES
from common.wire.describe import TokenTable

logger = logging.getLogger(__name__)

HUB_TIME = 5.0  # seconds for the hub's first answer
UNBOUNDED_POSITIONS = 2**31 - 1

_T = TypeVar("_T")
_LOAD_ERRORS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError, SafetensorError),
)
"""What transformers, safetensors and the hub raise for files that are missing, foreign or broken."""


class TargetCheckpoint:
    """Holds a checkpoint's configuration, generation settings and tokenizer, of transformers' types."""

    def __init__(
        self, name: str, config: Any, generation: Any, tokenizer: PreTrainedTokenizerBase | None
    ) -> None:
        self.name = name
        self._text = text = config.get_text_config(decoder=True)
        self._generation = generation
        self._tokenizer = tokenizer
        self.vocab_size = int(text.vocab_size)
        # Longest prompt and text; `UNBOUNDED_POSITIONS` if the configuration names no limit.
        self.max_positions = int(getattr(text, "max_position_embeddings", None) or UNBOUNDED_POSITIONS)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Return end tokens of the generation settings, else of the configuration, rising."""
        ids = getattr(self._generation, "eos_token_id", None)
        ids = self._text.eos_token_id if ids is None else ids
        if ids is None:
            return ()
        return tuple(sorted(set(ids))) if isinstance(ids, list | tuple) else (int(ids),)

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """Return the sampling advice of the generation settings. Values without effect are left out, as in
        vLLM. Values that are not allowed are left out with a warning."""
        neutral, defaults = SamplingParams(temperature=1.0), NO_ADVICE
        for each in fields(SamplingDefaults):
            value = getattr(self._generation, each.name, None)
            if value is None or value == getattr(neutral, each.name):
                continue
            try:
                defaults = replace(defaults, **{each.name: value})
            except UserError as error:
                logger.warning("target %s: its generation settings are not followed: %s", self.name, error)
        return defaults

    def token_table(self) -> list[bytes | None]:
        """Return token texts by id as the tokenizer stores them (byte-level unicode, UTF-8), or None."""
        tokens = self._words.convert_ids_to_tokens(list(range(self.vocab_size)))
        return [None if token is None else token.encode() for token in cast(list[str | None], tokens)]

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @property
    def chat(self) -> Chat | None:
        """Return the chat template (the default of several) and the words that it may name, read from the
        tokenizer's files and not run. None without a template, and for a template that is too long."""
        template: Any = getattr(self._tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = template.get("default")
        if not template or not isinstance(template, str):
            return None
        if len(template.encode()) > MAX_TEMPLATE_BYTES:
            logger.warning("target %s: its chat template is too long and is left out", self.name)
            return None
        bos, eos = (getattr(self._tokenizer, f"{kind}_token", None) for kind in ("bos", "eos"))
        return Chat(template, str(bos or ""), str(eos or ""))

    def grammar_tokens(self) -> Tokens:
        """Return the tokens' bytes, for grammars. Takes seconds for a large vocabulary; raises `UserError` if
        the bytes cannot be determined."""
        written = getattr(self._words, "backend_tokenizer", None)
        if written is None:
            raise UserError(f"model '{self.name}' takes no grammars: its tokenizer is none of tokenizer.json")
        return Tokens.of_tokenizer_json(written.to_str(), self.eos_token_ids, self.vocab_size)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, with the special tokens that the tokenizer puts around a prompt."""
        return list(self._words(text)["input_ids"])

    @property
    def _words(self) -> PreTrainedTokenizerBase:
        if self._tokenizer is None:
            raise UserError(
                f"model '{self.name}' was loaded without a tokenizer; its folder needs tokenizer.json"
            )
        return self._tokenizer


def describe(source: str, num_slots: int) -> tuple[TargetInfo, TokenTable]:
    """Return what edges must know of a target, and its token table. Raises `UserError`."""
    place = place_of(source)
    config: Any = loading(source, lambda: AutoConfig.from_pretrained(place, trust_remote_code=False))
    tokenizer: Any = loading(source, lambda: AutoTokenizer.from_pretrained(place, trust_remote_code=False))
    try:
        generation: Any = GenerationConfig.from_pretrained(place)
    except OSError:  # a checkpoint need not have any
        generation = GenerationConfig.from_model_config(config)
    checkpoint = TargetCheckpoint(source, config, generation, tokenizer)
    table = tuple(checkpoint.token_table())
    info = TargetInfo(
        name=source,
        vocab_size=checkpoint.vocab_size,
        max_positions=checkpoint.max_positions,
        num_slots=num_slots,
        eos_token_ids=checkpoint.eos_token_ids,
        fingerprint=Vocabulary(table).fingerprint,
        chat=checkpoint.chat,
        sampling_defaults=checkpoint.sampling_defaults,
    )
    return info, table


def read_settings(source: str) -> dict[str, Any]:
    """Return the config.json of a folder or hub id. Raises `UserError` if there is none."""
    place = place_of(source)
    settings: tuple[dict[str, Any], Any] = loading(source, lambda: PreTrainedConfig.get_config_dict(place))
    return settings[0]


def place_of(source: str) -> str:
    """Return the folder or hub id to load from. Raises `UserError` as `folder_of` does, and for a hub that
    cannot be reached."""
    folder = folder_of(source)
    return _on_the_hub(source) if folder is None else str(folder)


def _on_the_hub(source: str) -> str:
    """`source` if the hub answers, else the folder of an earlier download. transformers itself would try for
    half a minute. Raises `UserError` if there is neither."""
    if constants.HF_HUB_OFFLINE:
        return source
    asked = Request(f"{constants.ENDPOINT}/{quote(source)}/resolve/main/config.json", method="HEAD")
    try:
        with urlopen(asked, timeout=HUB_TIME):
            return source
    except HTTPError:  # what this means for the model is for transformers to say
        return source
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, SSLError):  # an answer: transformers has its own list of authorities
            return source
        try:
            return snapshot_download(source, local_files_only=True)
        except (OSError, ValueError):
            raise UserError(
                f"cannot load the target model '{source}': there is no such folder, and the Hugging Face hub "
                f"cannot be reached ({getattr(reason, 'strerror', None) or reason}). {WHAT_TO_GIVE}"
            ) from error


def loading(source: str, load: Callable[[], _T]) -> _T:
    """Run `load`; errors of files, formats and missing packages become a `UserError` that says what to do."""
    try:
        return load()
    except _LOAD_ERRORS as error:
        cause = str(error).strip().splitlines() or [type(error).__name__]
        message = f"cannot load the target model '{source}': {cause[0].rstrip('.')}."
        is_package = isinstance(error, ImportError)  # the message names it
        raise UserError(message if is_package else f"{message} {WHAT_TO_GIVE}") from error
