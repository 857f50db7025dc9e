"""From a request's body to a text: models by name, chat templates, prompts in tokens, limits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from common.errors import UnavailableError, UserError
from common.rpc.describe import Description
from common.sampling import SamplingParams
from edge_client.api.asking import Asked, read_asked
from edge_client.api.contents import Contents
from edge_client.api.errors import CONTEXT_LENGTH, TOO_LONG, ApiError, too_many_tokens, wrong
from edge_client.api.fields import Fields
from edge_client.api.shapes import ChatShape, Heading, Shape, TextShape
from edge_client.api.telling import Telling
from edge_client.core.config import Fallback
from edge_client.daemon.device import Device, Orders
from edge_client.daemon.request import TextRequest, Writer
from edge_client.daemon.templates import ChatTemplate

DEFAULT = "default"
"""The model that every request without one means, by name."""

UNTOLD = "target"
"""Name of a target while no verifier has told another."""

MAX_MESSAGES = 4096
MAX_LOGPROBS = 20
DEFAULT_TEXT_TOKENS = 16
"""Of `/v1/completions` where the request does not say, as OpenAI documents it."""

FIRST_WORD = 2.0
"""Seconds that a request waits for verifiers that are being asked for the first time; one that is there
answers in a few round trips, and one that is not is known by then."""

UNKNOWN_ROOM = 4096
"""Positions that a text is given where no verifier has told yet how many there are."""

UNTOLD_POSITIONS = 16_384 - 64
"""Prompt and text together, by default, where a verifier does not tell what it admits. Such a verifier is
older than the field `max_session_positions`. It has 16,384 KV slots by default, nodes of a step included."""

ROLES = ("system", "developer", "user", "assistant")

NOT_IN_MESSAGES = ("tool_calls", "function_call", "audio", "tool_call_id")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request gets that does not say."""

    draft_name: str = ""  # of the draft model, for `target@draft`; empty: none is configured
    policy: str = "adaptive"
    recall: bool = True
    fallback: Fallback = Fallback.WAIT
    template: str = ""  # of the draft's own file, for as long as no verifier has told the target's
    sampling: bool = True  # the target's own sampling defaults hold


class TextService:
    """Makes a `Telling` of a request's body. `wall` tells the seconds since 1970."""

    def __init__(self, device: Device, defaults: Defaults, wall: Callable[[], float] = time.time) -> None:
        self.device = device
        self.defaults = defaults
        self._wall = wall
        self._contents = Contents(device.words)

    # Models -----------------------------------------------------------------------------------------------

    def models(self) -> dict[str, Writer]:
        """The models by name: the pair comes first, and `DEFAULT`, which means the same, comes last."""
        found = self.device.verifiers.best()
        models = self._models_of(target_name(found.model) if found is not None else "")
        return models | {DEFAULT: next(iter(models.values()))}

    def _models_of(self, target: str) -> dict[str, Writer]:
        target, draft = target or UNTOLD, self.defaults.draft_name
        if not draft:
            return {target: Writer.TARGET}
        return {f"{target}@{draft}": Writer.SPLIT, target: Writer.TARGET, draft: Writer.DRAFT}

    def writer(self, name: str) -> tuple[str, Writer]:
        """The model of this name, or the default for an empty name. Raises `ApiError` for an unknown name.

        Names from before a verifier has answered stay good, and so does the target's name with its folders.
        """
        models = self.models()
        if name in ("", DEFAULT, "forerun"):
            return next(iter(models.items()))
        found = self.device.verifiers.best()
        if name not in models:
            others = self._models_of("") | (self._models_of(found.model) if found is not None else {})
            if name in others:
                return next((each, writer) for each, writer in models.items() if writer is others[name])
            known = ", ".join(models)
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; there are: {known}",
                param="model",
                code="model_not_found",
            )
        return name, models[name]

    # Requests ---------------------------------------------------------------------------------------------

    async def chat(self, body: dict[str, Any]) -> tuple[Telling, Asked]:
        """A chat completion's. Raises `ApiError` or `ForerunError`."""
        fields = Fields(body)
        messages = read_messages(fields)
        template_settings = read_template_settings(fields)
        wants = fields.flag("logprobs")
        top = fields.whole("top_logprobs", 0, 0, MAX_LOGPROBS)
        if fields.has("top_logprobs") and not wants:
            raise wrong("top_logprobs", "top_logprobs goes with logprobs: true only")
        asked = read_asked(fields)
        fields.finish()
        await self._hear()
        self._check_verifiers(asked)
        self._bound(sum(len(each["content"]) for each in messages), "messages")
        prompt = await self.chat_prompt(messages, template_settings)
        return self._telling(ChatShape(), prompt, asked, top if wants else None, None), asked

    async def completion(self, body: dict[str, Any]) -> tuple[Telling, Asked]:
        """A text completion's. Raises `ApiError` or `ForerunError`."""
        fields = Fields(body)
        prompt = await self._read_prompt(fields)
        fields.only("suffix", ("",), "the target only goes on from a text's end")
        fields.only("echo", (False,), "put the prompt before the answer yourself")
        logprobs = fields.whole("logprobs", 0, 0, MAX_LOGPROBS) if fields.has("logprobs") else None
        asked = read_asked(fields)
        fields.finish()
        await self._hear()
        self._check_verifiers(asked)
        return self._telling(TextShape(), prompt, asked, logprobs, DEFAULT_TEXT_TOKENS), asked

    async def chat_prompt(self, messages: list[dict[str, Any]], settings: dict[str, Any]) -> tuple[int, ...]:
        """A chat's token ids by the target's own template. No content of a client becomes a control token."""
        (messages, settings), mark = await asyncio.to_thread(self._contents.hide, [messages, settings])
        text = await self.render(messages, settings)
        self._bound(len(text), "messages")
        return _not_empty(await _in_thread(self._contents.tokenize, text, mark), "messages")

    async def render(self, messages: list[dict[str, Any]], settings: dict[str, Any]) -> str:
        """A chat as the target reads it."""
        found = self.device.verifiers.best()
        if found is None and not self.defaults.template and (why := self.device.verifiers.refusal()):
            raise why
        template = chat_template(found, self.defaults.template)
        return await asyncio.to_thread(template.render, messages, settings)

    async def _hear(self) -> None:
        """Wait until a verifier has answered, for `FIRST_WORD` seconds at most.

        Before that the target's name, template, end tokens and room are not known, and the text would differ.
        """
        if self.device.verifiers.best() is None:
            await self.device.verifiers.heard(FIRST_WORD)

    def _check_verifiers(self, asked: Asked) -> None:
        """Raise the reason why no verifier can write this text, unless the draft may write it instead."""
        _, writer = self.writer(asked.model)
        if writer is Writer.DRAFT or self.device.orders is Orders.REMOTE_OFF:
            return
        why = self.device.verifiers.refusal()
        falls_back = (asked.extras.fallback or self.defaults.fallback) is Fallback.DRAFT
        alone = falls_back and writer is Writer.SPLIT and isinstance(why, UnavailableError)
        if why is not None and not alone:
            raise why

    async def tokenize(self, text: str, param: str, special: bool = True) -> tuple[int, ...]:
        """Token ids of a text. With `special`, texts of control tokens become those tokens."""
        self._bound(len(text), param)
        return await _in_thread(self.device.words.tokenize, text, special)

    async def detokenize(self, tokens: list[Any]) -> str:
        """The text of token ids."""
        self._bound_tokens(len(tokens), "tokens")
        return await asyncio.to_thread(self._spelled, tokens)

    def _spelled(self, tokens: list[Any]) -> str:
        words = self.device.words
        _check_ids(tokens, words.num_vocab, "tokens")
        return b"".join(map(words.piece, tokens)).decode("utf-8", "replace")

    @cached_property
    def _longest_piece(self) -> int:
        """Bytes of the longest token as the tokenizer's file spells it, which is no shorter than its text."""
        return max(len(each or b"") for each in self.device.vocabulary.table)

    def _bound(self, num_chars: int, param: str) -> None:
        """Raise `ApiError` for a text that cannot fit. Tokenizing it first would take seconds."""
        longest = self.device.max_positions
        if longest and num_chars > longest * self._longest_piece:
            raise _too_long(param, longest, f"{num_chars} characters, which are more tokens than that")

    def _bound_tokens(self, num_tokens: int, param: str) -> None:
        longest = self.device.max_positions
        if longest and num_tokens > longest:
            raise _too_long(param, longest, f"{num_tokens} tokens")

    def _begun(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Put the target's begin tokens before `tokens`, unless they are there."""
        begin = self.device.words.begin_ids
        return tokens if tokens[: len(begin)] == begin else begin + tokens

    async def _read_prompt(self, fields: Fields) -> tuple[int, ...]:
        """Read a string or a list of token ids. A list that holds only one of these counts as that one."""
        prompt = fields.any("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._begun(_not_empty(await self.tokenize(prompt, "prompt"), "prompt"))
        if not isinstance(prompt, list) or not prompt:
            raise fields.wrong("prompt", "must be a string or a list of token ids that is not empty")
        self._bound_tokens(len(prompt), "prompt")
        if any(isinstance(each, str | list) for each in prompt):
            raise wrong(
                "prompt", "several prompts in one request are not supported; send one request for each"
            )
        _check_ids(prompt, self.device.words.num_vocab, "prompt")
        return tuple(prompt)

    def _telling(
        self,
        shape: Shape,
        prompt: tuple[int, ...],
        asked: Asked,
        logprobs: int | None,
        default_tokens: int | None,
    ) -> Telling:
        name, writer = self.writer(asked.model)
        if logprobs is not None and writer is Writer.DRAFT:
            raise wrong(
                "logprobs", f"{name} writes without the target, whose log-probabilities these would be"
            )
        self._check_grammar(asked.sampling.grammar)
        self._check_token_ids(asked.sampling)
        extras, defaults = asked.extras, self.defaults
        identity = shape.prefix + secrets.token_hex(12)
        limit = self._limit(len(prompt), asked.max_tokens, default_tokens, writer)
        advised = {} if writer is Writer.DRAFT else self.sampling_defaults()
        advised = {name: value for name, value in advised.items() if name in asked.left_out}
        request = TextRequest(
            prompt=prompt,
            sampling=replace(asked.sampling, max_tokens=limit, **advised),
            id=identity,
            writer=Writer.TARGET if writer is Writer.SPLIT and not extras.speculate else writer,
            stops=asked.stops,
            logprobs=logprobs,
            fallback=extras.fallback or defaults.fallback,
            revises=extras.revise and asked.stream,
            policy=extras.policy if extras.policy != "adaptive" else defaults.policy,
            recall=defaults.recall if extras.recall is None else extras.recall,
            acceptance=extras.acceptance,
            advised=tuple(advised.items()),
        )
        words = self.device.words if logprobs is not None else None
        heading = Heading(identity, int(self._wall()), name, self._system_fingerprint())
        return Telling(heading, shape, request, asked.client, words, asked.include_usage, extras.origins)

    def sampling_defaults(self) -> dict[str, Any]:
        """The target's advised sampling values, by name. They hold where a request names no value."""
        found = self.device.verifiers.best()
        return found.sampling_defaults.advised if found is not None and self.defaults.sampling else {}

    def _check_grammar(self, grammar: str) -> None:
        """Raise `ApiError` if the verifier knows no grammars: it would ignore this one."""
        found = self.device.verifiers.best()
        if grammar and found is not None and not found.grammars:
            raise wrong("response_format", f"the verifier of {found.model} holds no text to a grammar")

    def _check_token_ids(self, sampling: SamplingParams) -> None:
        """Raise `ApiError` for ids that the target does not have. The verifier would refuse them too, but
        cannot name the request's field."""
        found = self.device.verifiers.best()
        size = found.vocab_size if found is not None else self.device.words.num_vocab
        biased = tuple(token for token, _ in sampling.logit_bias)
        for name, tokens in (("logit_bias", biased), ("stop_token_ids", sampling.stop_token_ids)):
            if (outside := max(tokens, default=0)) >= size:
                raise wrong(name, f"{name} holds token id {outside}; the target has ids 0 to {size - 1}")

    def _limit(self, num_prompt: int, asked: int | None, default: int | None, writer: Writer) -> int:
        """Tokens that the text may have. Raises `ApiError` if the request asks for more than fits."""
        longest = self.device.max_positions
        room = (longest or max(UNKNOWN_ROOM, num_prompt + 1)) - num_prompt
        if room < 1 or (asked is not None and asked > room and longest):
            raise too_many_tokens("messages" if default is None else "prompt", longest, num_prompt, asked)
        found = self.device.verifiers.best() if writer is not Writer.DRAFT else None
        quota = found.max_text_tokens if found is not None else None
        if asked is not None and asked > (quota or asked):
            raise wrong("max_tokens", f"max_tokens is {asked}; the verifier's quota allows {quota} at most")
        if found is not None and found.max_session_positions is None:
            room = max(1, min(room, UNTOLD_POSITIONS - num_prompt))
        return asked or min(room, default or room, quota or room)

    def _system_fingerprint(self) -> str:
        """Names what else a text depends on: the target's build and its tokens."""
        found = self.device.verifiers.best()
        fingerprint = found.fingerprint if found is not None else self.device.vocabulary.fingerprint
        return f"fp_{fingerprint[:6].hex()}"


async def _in_thread(tokenize: Callable[[str, Any], list[int]], text: str, how: Any) -> tuple[int, ...]:
    """Tokenize in a thread: a long text takes seconds."""
    try:
        return tuple(await asyncio.to_thread(tokenize, text, how))
    except UnicodeEncodeError as error:  # of a template's own; a client's is refused with its body
        raise ApiError(400, "the text holds half a surrogate pair, which is no character") from error


def _not_empty(tokens: tuple[int, ...], param: str) -> tuple[int, ...]:
    if not tokens:
        raise wrong(param, "the prompt is empty; at least one token is needed")
    return tokens


def _check_ids(tokens: list[Any], size: int, param: str) -> None:
    if not all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < size for each in tokens):
        raise wrong(param, f"{param} must hold token ids from 0 to {size - 1} only")


def _too_long(param: str, longest: int, has: str) -> ApiError:
    return wrong(
        param,
        f"{CONTEXT_LENGTH} is {longest} tokens. However, {param} has {has}; shorten it.",
        TOO_LONG,
    )


def target_name(told: str) -> str:
    """A target's name without the folders of its machine; ids of the hub stay as they are."""
    return told.rstrip("/").rpartition("/")[2] if told.startswith(("/", ".", "~")) else told


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """A chat's messages: roles and texts. Raises `ApiError`."""
    messages = fields.list("messages", MAX_MESSAGES)
    if not messages:
        raise wrong("messages", "messages must have at least one message")
    return [_read_message(f"messages[{at}]", each) for at, each in enumerate(messages)]


def chat_template(found: Description | None, own: str) -> ChatTemplate:
    """The target's, or for as long as that is not known the draft's. Raises `UserError` if there is none,
    `UnavailableError` if nobody has told."""
    if found is not None and found.chat_template:
        return _parsed(found.chat_template, found.bos_token, found.eos_token)
    if own:
        return _parsed(own, "", "")
    if found is None:
        raise UnavailableError(
            "no verifier has told its chat template yet; try again, or use /v1/completions"
        )
    raise UserError(f"the target {found.model} has no chat template; use /v1/completions")


@lru_cache(maxsize=8)
def _parsed(source: str, bos: str, eos: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": bos, "eos_token": eos})


def _read_message(at: str, message: object) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong(at, f"{at} must be an object with a role and a content")
    fields = Fields(message, f"{at}.")
    for name in NOT_IN_MESSAGES:
        fields.only(name, ([],), "the daemon knows no tools, and the text of a message is all that it reads")
    fields.only("refusal", (), "an answer that was refused has no text to go on from")
    role = fields.text("role", longest=32)
    if role not in ROLES:
        raise fields.wrong("role", f"must be one of {', '.join(ROLES)}")
    if role == "developer":  # OpenAI's newer word, which templates do not know
        role = "system"
    found = {"role": role, "content": _read_content(fields)}
    if name := fields.text("name", longest=256):
        found["name"] = name
    fields.finish()
    return found


def _read_content(fields: Fields) -> str:
    """A string, or parts of which each must be text."""
    content = fields.any("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise fields.wrong("content", "must be a string or a list of text parts")
    texts = list[str]()
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise wrong(
                "messages", f"a part of type {kind!r} is not supported; text is", "unsupported_parameter"
            )
        texts.append(part["text"])
    return "".join(texts)


def read_template_settings(fields: Fields) -> dict[str, Any]:
    """The template's own switches, as vLLM and llama-server take them."""
    settings = fields.any("chat_template_kwargs")
    if settings is None:
        return {}
    if not isinstance(settings, dict) or "messages" in settings:
        raise fields.wrong("chat_template_kwargs", "must be an object, and without `messages`")
    return settings
