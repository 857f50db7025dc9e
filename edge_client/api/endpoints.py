"""Turns a request's body into a text: models by name, chat templates, prompts in tokens, limits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from common.errors import UnavailableError, UserError
from common.sampling import MAX_SEED, SamplingParams
from edge_client.api.response import ResponseSpec
from edge_client.core.effects import Fallback
from edge_client.core.verifier_choice import target_name
from edge_client.formats.api_error import (
    TOO_LONG,
    ApiError,
    exceeds_context,
    too_many_tokens,
    unsupported,
    wrong,
)
from edge_client.formats.call_grammar import CallGrammars, request_grammar, thought_of
from edge_client.formats.call_style import CallStyle, call_style
from edge_client.formats.call_syntax import Controls
from edge_client.formats.chat_template import ChatTemplate
from edge_client.formats.contents import Contents, strings
from edge_client.formats.detokenizer import spelled
from edge_client.formats.dialect import Dialect, Heading, Usage
from edge_client.formats.families import begun_by, family_of
from edge_client.formats.fields import Fields, are_token_ids
from edge_client.formats.infill import Gap, Infill
from edge_client.formats.message import MessageForm
from edge_client.formats.parsed_request import CallRule, ChatPrompt, ParsedRequest, Tool, Tools, read_model
from edge_client.formats.token_requests import TokenizeRequest
from edge_client.formats.turn_order import is_plain
from edge_client.texts.text_request import TextRequest, Writer
from edge_client.texts.text_service import Orders, TextService

T = TypeVar("T")

DEFAULT = "default"
"""Name of the model of requests without one."""

SYNONYMS = ("", DEFAULT, "forerun")
"""Names of the default model, which no other model has."""

LATEST = ":latest"
"""Tag that Ollama's clients add to a name without one. No listed name ends in it."""

ANTHROPICS = "claude-"
"""Begins the names of models that Anthropic's clients ask for unless they are told another one."""

UNTOLD = "target"
"""Name of the target until a verifier reports its own."""

FIRST_WORD = 2.0
"""Seconds that a request waits for the first answer of verifiers. A verifier answers in a few round trips,
and a missing one is known by then."""

MOST_REFERRED = 65_536
"""Tokens of all texts that one answer may repeat. Further ones are not drafted from: the index of these takes
the event loop some 50 ms."""

LONG_TEXT = 65_536
"""Characters of a text that is tokenized in tens of milliseconds at most."""

UNKNOWN_ROOM = 4096
"""Positions of a text until a verifier reports its limit."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Holds the defaults of requests."""

    draft_name: str = ""  # of the draft model, for `target@draft`; empty: none is configured
    policy: str = "adaptive"
    recall: bool = True
    fallback: Fallback = Fallback.WAIT
    template: str = ""  # of the draft's own file, until a verifier reports the target's
    sampling: bool = True  # apply the target's own sampling defaults


class TextEndpoints:
    """Makes a `ResponseSpec` of a request's body, for one pair of a draft model and verifiers.

    `wall` returns the seconds since 1970. `pair` is the pair's name; empty if the daemon has only this one.
    """

    def __init__(
        self,
        texts: TextService,
        defaults: Defaults,
        wall: Callable[[], float] = time.time,
        pair: str = "",
    ) -> None:
        self.texts = texts
        self.pair = pair
        self.defaults = defaults
        self._wall = wall
        self._contents = Contents(texts.words)
        self._target = UNTOLD  # the target's newest name

    # Models -----------------------------------------------------------------------------------------------

    def models(self) -> dict[str, Writer]:
        """Return the models by name, draft model and target together first. All names differ.

        A target keeps its name while no verifier fits, so that no draft of this name writes in its place.
        """
        if (described := self.texts.verifiers.best()) is not None:
            self._target = target_name(described.model)
        return self._models_of(self._target)

    @property
    def proposes(self) -> bool:
        """Tell whether the default model is drafted here: by a draft model, or else from known texts."""
        defaults = self.defaults
        return bool(defaults.draft_name) or (defaults.recall and defaults.policy != "off")

    def _models_of(self, target: str) -> dict[str, Writer]:
        """Return the models for a target of this name. A name that is taken ends in its writer's word. So the
        draft is called `demo:draft` if the target is called `demo`, too."""
        draft, target = self.defaults.draft_name.removesuffix(LATEST), target.removesuffix(LATEST) or UNTOLD
        named = [(f"{target}@{draft}", Writer.SPLIT), (target, Writer.TARGET), (draft, Writer.DRAFT)]
        if not self.defaults.draft_name:
            named = [(target, Writer.SPLIT if self.proposes else Writer.TARGET)]
        taken = {*SYNONYMS, self.pair} | ({UNTOLD} - {target})
        models = {self.pair: named[0][1]} if self.pair else {}
        for own, writer in named:
            name = own
            while name in taken or name.endswith(LATEST):
                name = f"{name}:{writer.value}"
            taken.add(name)
            models[name] = writer
        return models

    def writer(self, name: str) -> tuple[str, Writer]:
        """Return the model of this name, or the default for none. Raises `ApiError` for an unknown one."""
        if (model := self.find(name)) is not None:
            return model
        models = self.models()
        if not is_default(name):
            raise unknown_model(name, (*models, DEFAULT))
        return next(iter(models.items()))

    def lists(self, name: str) -> bool:
        """Tell whether a model of this pair has this name, which `PAIR/` may precede."""
        return not self.models().keys().isdisjoint((name, self._own(name)))

    def find(self, name: str) -> tuple[str, Writer] | None:
        """Return the model of this name, which `PAIR/` may precede; None if it is none of this pair's.

        Names from before a verifier's answer stay valid, as does the target's name with its folders.
        """
        name = name.removesuffix(LATEST)
        models, described, own = self.models(), self.texts.verifiers.best(), self._own(name)
        for each in (own, name):
            if each in models:
                return name, models[each]
        others = self._models_of(UNTOLD) | (self._models_of(described.model) if described is not None else {})
        writer = others.get(own) or others.get(name)
        prefix = name[: len(name) - len(own)] if own in others else ""
        return next(((prefix + each, known) for each, known in models.items() if known is writer), None)

    def _own(self, name: str) -> str:
        """Return a model's name without `PAIR/`."""
        return name.removeprefix(f"{self.pair}/") if self.pair else name

    # Requests ---------------------------------------------------------------------------------------------

    async def read(self, dialect: type[Dialect], body: dict[str, Any]) -> ResponseSpec:
        """Read a request's body. Raises `ApiError` or `ForerunError`."""
        longest = self.texts.max_positions
        try:
            return await self._spec(dialect, body)
        except ApiError as error:
            if error.code != TOO_LONG:
                raise
            await self.texts.verifiers.heard(FIRST_WORD)
            if self.texts.max_positions == longest:
                raise self._with_setting(error) from None
        return await self._spec(dialect, body)

    def _with_setting(self, error: ApiError) -> ApiError:
        """Return the error of a text that is too long. It names the setting if that is the limit."""
        described = self.texts.verifiers.best()
        if described is None or self.texts.max_positions == described.max_positions:
            return error
        words = f"The model takes {described.max_positions}; `forerun verify` runs with too few --slots."
        return wrong(error.param or "prompt", f"{error} {words}", error.code)

    async def _spec(self, dialect: type[Dialect], body: dict[str, Any]) -> ResponseSpec:
        asked, prompts, message = await self._read(dialect, body)
        if isinstance(asked.prompt, ChatPrompt) and (asked.prompt.tools.callable or asked.sampling.grammar):
            asked = await asyncio.to_thread(self._held, asked, asked.prompt.tools, message)
        references = await self._references(asked) if asked.speculate else ()
        return self._response(dialect, asked, prompts, message, references)

    async def count_tokens(self, dialect: type[Dialect], body: dict[str, Any]) -> int:
        """Return the tokens of a request's prompts. Raises `ApiError` or `ForerunError`."""
        _, prompts, _ = await self._read(dialect, body)
        return sum(map(len, prompts))

    async def _read(
        self, dialect: type[Dialect], body: dict[str, Any]
    ) -> tuple[ParsedRequest, list[tuple[int, ...]], MessageForm]:
        """Read a request's body, its prompts in tokens, and how its texts are read."""
        fields = Fields(body)
        asked = dialect.parse(fields)
        if self.texts.verifiers.best() is None:
            # Until then the target's name, template, end tokens and limits are unknown.
            await self.texts.verifiers.heard(FIRST_WORD)
        self._check_verifiers(asked)
        given, sampling = asked.prompt, asked.sampling
        if isinstance(given, Gap):
            given, ends = await self._fill(given, dialect.param)
            stops = tuple(dict.fromkeys((*sampling.stop_token_ids, *ends)))
            asked = replace(asked, sampling=replace(sampling, stop_token_ids=stops))
        if not isinstance(given, tuple):
            prompt, message = await self.prompt(given, dialect.param)
            return asked, [prompt], message
        read = [await self.prompt(each, f"{dialect.param}[{at}]") for at, each in enumerate(given)]
        return asked, [prompt for prompt, _ in read], MessageForm()

    def nothing(self, dialect: type[Dialect], body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a request for no text. Raises `ApiError` for an unknown model."""
        name, _ = self.writer(read_model(Fields(body)))
        form = {"keep_alive": body.get("keep_alive")}
        heading = Heading("", int(self._wall()), name, self._system_fingerprint(), form)
        return dialect(heading, None).whole((), Usage(0))

    async def render(self, chat: ChatPrompt) -> str:
        """Return a chat rendered by the target's template. Tools are listed unless none may be called."""
        described = self.texts.verifiers.best()
        if described is None and not self.defaults.template and (why := self.texts.verifiers.refusal()):
            raise why
        template = self.chat_template()
        tools = [] if chat.tools.rule is CallRule.NONE else _listed(chat)
        settings = {**chat.settings, "tools": tools} if tools else chat.settings
        messages = chat.messages
        if tools or not is_plain(messages):
            style = await asyncio.to_thread(self._style, template)
            messages = style.shown(messages, tools)
        family = family_of(template.source)
        settings = family.settings(template.source, settings)
        messages = family.messages(template.source, messages, settings)
        return await asyncio.to_thread(template.render, messages, settings)

    def chat_template(self) -> ChatTemplate:
        """Return the target's template, or the draft's until a verifier reports it.

        Raises `UserError` if there is none, `UnavailableError` if none is known yet.
        """
        described, own = self.texts.verifiers.best(), self.defaults.template
        if described is not None and described.chat_template:
            return _parsed(described.chat_template, described.bos_token, described.eos_token)
        if own:
            return _parsed(own, "", "")
        if described is None:
            raise UnavailableError(
                "no verifier has reported its chat template yet; try again, or use /v1/completions"
            )
        raise UserError(f"the target {described.model} has no chat template; use /v1/completions")

    def _style(self, template: ChatTemplate) -> CallStyle:
        """Return how the target is shown messages and tools, in the first case after some renderings."""
        return call_style(template, self._controls)

    @cached_property
    def _controls(self) -> Controls:
        """Return the control tokens that a text names."""
        words = self.texts.words
        ids = {text: words.tokenize(text, True) for text in words.control_texts if len(text) > 1}
        return Controls({text: tokens[0] for text, tokens in ids.items() if len(tokens) == 1})

    def _held(self, asked: ParsedRequest, tools: Tools, message: MessageForm) -> ParsedRequest:
        """Return a chat's request with the grammar that its tools and format need. Raises `ApiError`."""
        template = self.chat_template()
        thought = thought_of(message, template.source)
        make = CallGrammars(self._style(template).syntax, self._controls, tools.parallel, thought)
        grammar = request_grammar(tools, asked.sampling.grammar, make)
        return replace(asked, sampling=replace(asked.sampling, grammar=grammar))

    async def tokenize(self, text: str, param: str, special: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text. With `special`, texts of control tokens become those tokens."""
        self._bound(len(text), param)
        return await self._in_thread(self.texts.words.tokenize, text, special, len(text))

    def begun(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens of a text with the beginning token before them, if the target has one."""
        begin = self.texts.words.begin_ids
        return tokens if tokens[: len(begin)] == begin else begin + tokens

    async def tokens(self, asked: TokenizeRequest) -> tuple[int, ...]:
        """Return the token ids of a request's text or chat. Raises `ApiError` or `ForerunError`."""
        if isinstance(asked.prompt, ChatPrompt):
            return (await self.prompt(asked.prompt, asked.param))[0]
        tokens = await self.tokenize(asked.prompt, asked.param, asked.special)
        return self.begun(tokens) if asked.begins else tokens

    async def detokenize(self, tokens: list[Any]) -> str:
        """Return the text of token ids."""
        words = self.texts.words
        self._bound_tokens(len(tokens), "tokens")
        await asyncio.to_thread(_check_ids, tokens, words.num_vocab, "tokens")
        return await asyncio.to_thread(spelled, words, tokens)

    def _check_verifiers(self, asked: ParsedRequest) -> None:
        """Raise the reason if no verifier can write this text and the draft may not, either."""
        _, writer = self.writer(asked.model)
        if writer is Writer.DRAFT or self.texts.orders is Orders.REMOTE_OFF:
            return
        why = self.texts.verifiers.refusal()
        falls_back = (asked.fallback or self.defaults.fallback) is Fallback.DRAFT and self.texts.can_draft
        alone = falls_back and writer is Writer.SPLIT and isinstance(why, UnavailableError)
        if why is not None and not alone:
            raise why

    @cached_property
    def infill(self) -> Infill | None:
        """Return how the target fills gaps; None if it has no tokens for it."""
        return Infill.of(self.texts.vocabulary)

    async def _fill(self, gap: Gap, param: str) -> tuple[list[Any], tuple[int, ...]]:
        """Return the prompt of a text with a gap as token ids, and the tokens that end what fills it."""
        infill, words = self.infill, self.texts.words
        if infill is None:
            why = "the target has no tokens to fill in the middle of a text; send a prompt without a suffix"
            raise unsupported("suffix", why)
        self._bound(gap.num_chars, param)
        tokens = await self._in_thread(
            infill.prompt, gap, lambda text: words.tokenize(text, False), gap.num_chars
        )
        return [*words.begin_ids, *tokens], infill.ends

    async def prompt(
        self, prompt: ChatPrompt | str | list[Any], param: str
    ) -> tuple[tuple[int, ...], MessageForm]:
        """Return the prompt's token ids, and how the text that follows it is read. No content of a chat
        becomes a control token."""
        form = MessageForm()
        match prompt:
            case ChatPrompt():
                tokens, form = await self._chat(prompt, param)
            case str():
                tokens = await self.tokenize(prompt, param)
                tokens = self.begun(tokens) if tokens else tokens
            case _:
                self._bound_tokens(len(prompt), param)
                _check_ids(prompt, self.texts.words.num_vocab, param)
                tokens = tuple(prompt)
        if not tokens:
            raise wrong(param, "the prompt is empty; at least one token is needed")
        return tokens, form

    async def _chat(self, chat: ChatPrompt, param: str) -> tuple[tuple[int, ...], MessageForm]:
        """Return a chat's token ids and how its answer is read."""
        tools = _listed(chat)
        self._bound(sum(map(len, strings([chat.messages, tools]))), param)
        (messages, settings, listed), mark = await asyncio.to_thread(
            self._contents.hide, [chat.messages, chat.settings, tools]
        )
        hidden = [Tool(**each["function"]) for each in listed]
        text = await self.render(ChatPrompt(messages, settings, replace(chat.tools, listed=tuple(hidden))))
        self._bound(len(text), param)
        tokens = await self._in_thread(self._contents.tokenize, text, mark, len(text))
        return tokens, await asyncio.to_thread(self._form, chat, text.replace(mark, "") if mark else text)

    def _form(self, chat: ChatPrompt, prompt: str) -> MessageForm:
        """Return how the answer to a chat is read: as the target's family writes."""
        template = self.chat_template()
        tools = [each.to_json() for each in chat.tools.callable]
        has_own_calls = not tools or self._style(template).is_own
        form = family_of(template.source).form(template.source, has_own_calls)
        return replace(begun_by(form, prompt), tools=tools)

    async def _references(self, asked: ParsedRequest) -> tuple[tuple[int, ...], ...]:
        """Return the token ids of the texts that the answer may repeat, `MOST_REFERRED` at most together."""
        references, left = list[tuple[int, ...]](), MOST_REFERRED
        for text in asked.references:
            tokens = await self._in_thread(self.texts.words.tokenize, text, False, len(text))
            references.append(tokens[:left])
            left -= len(references[-1])
        return tuple(filter(None, references))

    async def _in_thread(
        self, tokenize: Callable[[T, Any], Sequence[int]], text: T, how: Any, num_chars: int
    ) -> tuple[int, ...]:
        """Tokenize in a thread: a long text, which takes seconds, in one of few that are for these alone."""
        pool = self.texts.admission.long_texts if num_chars > LONG_TEXT else None
        try:
            return tuple(await asyncio.get_running_loop().run_in_executor(pool, tokenize, text, how))
        except UnicodeEncodeError as error:  # from a template; a client's is refused with its body
            why = "the text holds half a surrogate pair, which is not a character"
            raise ApiError(400, why) from error

    def _bound(self, num_chars: int, param: str) -> None:
        """Raise `ApiError` for a text that cannot fit, before tokenizing it for seconds."""
        longest = self.texts.max_positions
        if longest and num_chars > longest * self._longest_piece:
            why = f"{param} has {num_chars} characters, which exceed that limit; shorten it"
            raise exceeds_context(param, longest, why)

    @cached_property
    def _longest_piece(self) -> int:
        """Return the bytes of the longest token in the tokenizer's file, at least those of its text."""
        return max(len(each or b"") for each in self.texts.vocabulary.table)

    def _bound_tokens(self, num_tokens: int, param: str) -> None:
        longest = self.texts.max_positions
        if longest and num_tokens > longest:
            raise exceeds_context(param, longest, f"{param} has {num_tokens} tokens; shorten it")

    def _response(
        self,
        dialect: type[Dialect],
        asked: ParsedRequest,
        prompts: Sequence[tuple[int, ...]],
        message: MessageForm,
        references: tuple[tuple[int, ...], ...] = (),
    ) -> ResponseSpec:
        name, writer = self.writer(asked.model)
        if asked.logprobs is not None and writer is Writer.DRAFT:
            raise wrong("logprobs", f"{name} writes without the target, so there are no log-probabilities")
        self._check_grammar(asked.sampling.grammar)
        self._check_token_ids(asked.sampling)
        defaults = self.defaults
        limits = [self._limit(len(prompt), asked.max_tokens, dialect, writer) for prompt in prompts]
        advised = {} if writer is Writer.DRAFT else self.sampling_defaults()
        advised = {name: value for name, value in advised.items() if name in asked.left_out}
        identity, told = dialect.prefix + secrets.token_hex(12), self.texts.verifiers.best()
        request = TextRequest(
            prompt=prompts[0],
            sampling=replace(asked.sampling, max_tokens=limits[0], **advised),
            id=identity,
            writer=Writer.TARGET if writer is Writer.SPLIT and not asked.speculate else writer,
            stops=asked.stops,
            logprobs=asked.logprobs,
            fallback=asked.fallback or defaults.fallback,
            revises=asked.revise and asked.stream,
            policy=asked.policy if asked.policy != "adaptive" else defaults.policy,
            recall=defaults.recall if asked.recall is None else asked.recall,
            references=references,
            acceptance=asked.acceptance,
            advised=tuple(advised.items()),
            target="" if told is None else target_name(told.model),
        )
        form = dialect.drawn_by(asked.form, request.sampling)
        texts = [text for text in zip(prompts, limits, strict=True) for _ in range(asked.n)]
        return ResponseSpec(
            dialect,
            Heading(identity, int(self._wall()), name, self._system_fingerprint(), form),
            tuple(_another(request, number, *text) for number, text in enumerate(texts)),
            message,
            asked.client,
            asked.origins,
            asked.stream,
            pair=self.pair,
        )

    def sampling_defaults(self) -> dict[str, Any]:
        """Return the target's sampling defaults for requests without their own values."""
        described = self.texts.verifiers.best()
        return described.sampling_defaults.advised if described is not None and self.defaults.sampling else {}

    def _check_grammar(self, grammar: str) -> None:
        """Raise `ApiError` if the verifier does not support grammars and would ignore this one."""
        described = self.texts.verifiers.best()
        if grammar and described is not None and not described.grammars:
            raise wrong("response_format", f"the verifier of {described.model} does not support grammars")

    def _check_token_ids(self, sampling: SamplingParams) -> None:
        """Raise `ApiError` for ids outside the target's vocabulary. The verifier would refuse them, too, but
        without the request's field."""
        described = self.texts.verifiers.best()
        size = described.vocab_size if described is not None else self.texts.words.num_vocab
        biased = tuple(token for token, _ in sampling.logit_bias)
        for name, tokens in (("logit_bias", biased), ("stop_token_ids", sampling.stop_token_ids)):
            if (outside := max(tokens, default=0)) >= size:
                raise wrong(name, f"{name} holds token id {outside}; the target has ids 0 to {size - 1}")

    def _limit(self, num_prompt: int, asked: int | None, dialect: type[Dialect], writer: Writer) -> int:
        """Return the text's limit in tokens. Raises `ApiError` if the request exceeds the context."""
        longest = self.texts.max_positions
        room = (longest or max(UNKNOWN_ROOM, num_prompt + 1)) - num_prompt
        if room < 1 or (asked is not None and asked > room and longest and not dialect.shortens):
            raise too_many_tokens(dialect.param, longest, num_prompt, asked)
        described = self.texts.verifiers.best() if writer is not Writer.DRAFT else None
        quota = described.max_text_tokens if described is not None else None
        if asked is not None and asked > (quota or asked) and not dialect.shortens:
            raise wrong("max_tokens", f"max_tokens is {asked}; the verifier's quota allows {quota} at most")
        if asked and dialect.shortens:
            return min(asked, room, quota or room)
        usual = dialect.default_tokens if asked is None else None
        return asked or min(room, usual or room, quota or room)

    def _system_fingerprint(self) -> str:
        described = self.texts.verifiers.best()
        fingerprint = described.fingerprint if described is not None else self.texts.vocabulary.fingerprint
        return f"fp_{fingerprint[:6].hex()}"


def _listed(chat: ChatPrompt) -> list[dict[str, Any]]:
    """Return the tools for the template's list."""
    return [tool.to_json() for tool in chat.tools.listed if not tool.in_messages]


def is_default(name: str) -> bool:
    """Tell whether a model's name means the daemon's default model, unless there is a model of this name."""
    return name.removesuffix(LATEST) in SYNONYMS or name.startswith(ANTHROPICS)


def _another(request: TextRequest, number: int, prompt: tuple[int, ...], limit: int) -> TextRequest:
    """Return the request of a choice: after the first with another seed, derived from the first one's."""
    if not number:
        return request
    seed = (request.sampling.seed + number) & MAX_SEED
    sampling = replace(request.sampling, seed=seed, max_tokens=limit)
    return replace(request, prompt=prompt, id=f"{request.id}-{number}", sampling=sampling)


def _check_ids(tokens: list[Any], size: int, param: str) -> None:
    if not are_token_ids(tokens, size):
        raise wrong(param, f"{param} must hold token ids from 0 to {size - 1} only")


def unknown_model(name: str, models: Iterable[str]) -> ApiError:
    """Return the error for a model that is none of `models`."""
    words = f"the model {name!r} does not exist here; there are: {', '.join(models)}"
    return ApiError(404, words, param="model", code="model_not_found")


@lru_cache(maxsize=8)
def _parsed(source: str, bos: str, eos: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": bos, "eos_token": eos})
