"""Reads the fields that all endpoints share: sampling, limits, format, and our own object `forerun`."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from common.acceptance import Acceptance, make_acceptance
from common.errors import UserError
from common.sampling import DRAWN_SEED_BITS, MAX_LOGIT_BIAS_ENTRIES, MAX_SEED, SamplingParams
from edge_client.core.effects import Fallback
from edge_client.core.policies import make_policy
from edge_client.formats.api_error import ApiError, unsupported, wrong
from edge_client.formats.fields import Fields, are_token_ids, is_number
from edge_client.formats.infill import Gap
from edge_client.formats.schema_bounds import bounded

MOST = 2**31 - 1

MAX_ID_DIGITS = 10
"""Digits of a token id in `logit_bias`, whose ids are texts."""

MAX_STOPS = 16
"""Limit on stop strings, each of which is searched at every token. OpenAI's API allows 4."""

MAX_STOP_CHARS = 256

MAX_REFERENCES, MAX_REFERENCE_CHARS = 64, 2**20
"""Limits on the texts that one answer may repeat, and on their characters together."""

MAX_CHOICES = 16
"""Limit on the texts of one prompt."""

MAX_TEXTS = 64
"""Limit on the texts of one request, the places of the daemon's queue by default."""

ONE_TEXT = dict.fromkeys(("n", "max_completion_tokens", "response_format", "stream_options"))
"""OpenAI's fields that other APIs lack, for `Fields.having`."""

NO_THINKING = ("none", "minimal")
"""Values of `reasoning_effort` that switch the reasoning of a template off where it has a switch."""

ADVISABLE = {name: (name,) for name in ("temperature", "top_k", "top_p", "min_p")} | {
    "repetition_penalty": ("repetition_penalty", "repeat_penalty")
}
"""Sampling values with defaults of the target, and the request's fields that set them."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Describes a function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]  # a JSON schema
    strict: bool = False  # a call's arguments must match the schema
    in_messages: bool = False  # a message describes it, so the chat template does not list it

    def to_json(self) -> dict[str, Any]:
        """Return the tool as chat templates get it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class CallRule(Enum):
    """Names what the model may or must do about tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tools:
    """Holds the tools of a request and how they may be called."""

    listed: tuple[Tool, ...] = ()
    rule: CallRule = CallRule.AUTO
    only: str = ""  # with `REQUIRED`: the name of the only tool that may be called; empty: any
    parallel: bool = True  # several calls in one message

    def checked(self) -> Tools:
        """Return these tools. Raises `ApiError` if a required tool is not listed."""
        names = {each.name for each in self.listed}
        if self.rule is CallRule.REQUIRED and (not names or (self.only and self.only not in names)):
            listed = ", ".join(sorted(names)) or "none"
            raise wrong("tool_choice", f"tool_choice needs a tool that is not listed; tools has {listed}")
        return self

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Return the tools that may be called."""
        if self.rule is CallRule.NONE:
            return ()
        return tuple(each for each in self.listed if self.only in ("", each.name))


NO_TOOLS = Tools()


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Holds a prompt as messages for the target's chat template."""

    messages: list[dict[str, Any]]
    settings: dict[str, Any]  # the template's own settings
    tools: Tools = NO_TOOLS


def make_chat(fields: Fields, messages: list[dict[str, Any]], tools: Tools, effort: str = "") -> ChatPrompt:
    """Return a chat with its template's settings: `chat_template_kwargs`, and how much the model reasons.

    `effort` is of an endpoint with a field of its own for it.
    """
    given = fields.any("chat_template_kwargs")
    settings = {} if given is None else given
    if not isinstance(settings, dict) or "messages" in settings or "tools" in settings:
        raise fields.wrong("chat_template_kwargs", "must be an object, and without `messages` and `tools`")
    fields.only("continue_final_message", (False,), "send the begun answer's prompt to /v1/completions")
    fields.only("add_generation_prompt", (True,), "set it in chat_template_kwargs")
    if effort := effort or fields.text("reasoning_effort", longest=32):
        thinks = effort not in NO_THINKING
        own: dict[str, Any] = {"enable_thinking": thinks}
        if thinks:
            own["reasoning_effort"] = effort
        settings = own | settings
    return ChatPrompt(messages, settings, tools)


Prompt = ChatPrompt | Gap | str | list[Any] | tuple[str | list[Any], ...]
"""Messages, a text with a gap, a text to be continued, token ids, or several of the latter two."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """Holds one request of any endpoint. None means the daemon's configuration unless noted."""

    prompt: Prompt
    form: dict[str, Any]  # what the response needs of the request, of JSON (`Heading.form`)
    logprobs: int | None  # alternatives shown with each token; None: no log-probabilities
    model: str
    sampling: SamplingParams  # its `max_tokens` is not read
    left_out: frozenset[str]  # sampling values that the request does not name
    max_tokens: int | None  # None: the dialect's default; 0: as many as fit
    stops: tuple[str, ...]
    stream: bool
    n: int  # texts of each prompt
    client: str  # owner of its place in the queue
    # of our own object, {"forerun": {...}}
    policy: str
    speculate: bool  # false: the verifier alone
    recall: bool | None
    references: tuple[str, ...]  # texts that the answer probably repeats
    fallback: Fallback | None
    acceptance: Acceptance
    origins: bool  # show every token's writer
    revise: bool  # show guesses that may be taken back


def read_asked(
    fields: Fields,
    prompt: Prompt,
    logprobs: int | None = None,
    form: dict[str, Any] | None = None,
) -> ParsedRequest:
    """Read the common fields. Raises `ApiError` that names the field."""
    ours = fields.object("forerun") or Fields({})
    fallback = ours.choice("fallback", "", ("", *(each.value for each in Fallback)))
    policy, rule = ours.text("policy", "adaptive", 256), ours.text("acceptance", "coupled", 256)
    stream = fields.flag("stream")
    user, identifier = (fields.text(name, longest=512) for name in ("user", "safety_identifier"))
    with blaming("forerun"):
        make_policy(policy)
        acceptance = make_acceptance(rule)
        own_grammar = _read_own_grammar(ours)
    n = fields.whole("n", 1, 1, MAX_CHOICES)
    asked = ParsedRequest(
        prompt=prompt,
        form={"usage": _read_stream_options(fields, stream), "n": n, **(form or {})},
        logprobs=logprobs,
        model=read_model(fields),
        sampling=_read_sampling(fields, own_grammar),
        left_out=frozenset(name for name, names in ADVISABLE.items() if not any(map(fields.has, names))),
        max_tokens=_read_max_tokens(fields),
        stops=read_stops(fields),
        stream=stream,
        n=n,
        client=user or identifier,
        policy=policy,
        speculate=ours.flag("speculate", True),
        recall=ours.flag("recall") if ours.has("recall") else None,
        references=(*_read_prediction(fields), *_read_reference(ours)),
        fallback=Fallback(fallback) if fallback else None,
        acceptance=acceptance,
        origins=ours.flag("origins"),
        revise=ours.flag("revise"),
    )
    ours.refuse_rest()
    grammar, _ = read_format(fields.object("response_format"), "response_format", "json_schema")
    return with_format(asked, "response_format", grammar)


def read_model(fields: Fields) -> str:
    """Read the model's name, which chooses the daemon's pair."""
    return fields.text("model", longest=512)


def with_format(asked: ParsedRequest, param: str, grammar: str) -> ParsedRequest:
    """Return a request with the grammar of its format, the field `param`; empty for free text.

    Raises `ApiError` if our own object has a grammar, too.
    """
    if not grammar:
        return asked
    if asked.sampling.grammar:
        raise wrong(param, f"{param} and a grammar were both given; give one of them")
    with blaming(param):
        return replace(asked, sampling=replace(asked.sampling, grammar=grammar))


@contextlib.contextmanager
def blaming(param: str) -> Iterator[None]:
    """Add the field at fault to an error."""
    try:
        yield
    except UserError as error:
        raise wrong(param, f"{param}: {error}") from error


def _read_prediction(fields: Fields) -> list[str]:
    """Read OpenAI's predicted output: a string, or a list of text parts."""
    given = fields.object("prediction")
    if given is None:
        return []
    given.choice("type", "content", ("content",))
    content = given.any("content")
    if isinstance(content, list) and len(content) <= MAX_REFERENCES:
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        is_text = len(texts) == len(content) and all(isinstance(each, str) for each in texts)
        content = "".join(map(str, texts)) if is_text else None
    if not isinstance(content, str) or len(content) > MAX_REFERENCE_CHARS:
        words = (
            f"a string or at most {MAX_REFERENCES} text parts, of {MAX_REFERENCE_CHARS} characters at most"
        )
        raise given.wrong("content", f"must be {words}")
    return [content] if content else []


def _read_reference(ours: Fields) -> list[str]:
    """Read our own field: a string, or a list of strings."""
    given = ours.any("reference")
    texts = [given] if isinstance(given, str) else [] if given is None else given
    is_list = isinstance(texts, list) and len(texts) <= MAX_REFERENCES
    if (
        not is_list
        or not all(isinstance(each, str) for each in texts)
        or sum(map(len, texts)) > MAX_REFERENCE_CHARS
    ):
        words = f"at most {MAX_REFERENCES} strings, of {MAX_REFERENCE_CHARS} characters at most together"
        raise ours.wrong("reference", f"must be a string or a list of {words}")
    return [each for each in texts if each]


def _read_sampling(fields: Fields, grammar: str) -> SamplingParams:
    penalty_names = [name for name in ("repetition_penalty", "repeat_penalty") if fields.has(name)]
    if len(penalty_names) > 1:
        raise wrong("repeat_penalty", "repetition_penalty and repeat_penalty are the same; give one of them")
    penalty = fields.number(penalty_names[0], 1.0, 1e-6, 100.0) if penalty_names else 1.0
    stop_ids = fields.list("stop_token_ids", 128)
    if not are_token_ids(stop_ids):
        raise fields.wrong("stop_token_ids", "must hold token ids only")
    try:
        return SamplingParams(
            temperature=fields.number("temperature", 1.0, 0.0, 100.0),
            top_k=max(0, fields.whole("top_k", 0, -1, MOST)),  # -1 is all tokens for vLLM's clients
            top_p=fields.number("top_p", 1.0, 0.0, 1.0) or 1e-9,  # 0 is the best token alone for OpenAI's
            min_p=fields.number("min_p", 0.0, 0.0, 1.0),
            repetition_penalty=penalty,
            presence_penalty=fields.number("presence_penalty", 0.0, -100.0, 100.0),
            frequency_penalty=fields.number("frequency_penalty", 0.0, -100.0, 100.0),
            logit_bias=_read_logit_bias(fields),
            stop_token_ids=tuple(stop_ids),
            ignore_eos=fields.flag("ignore_eos"),
            seed=_read_seed(fields),
            grammar=grammar,
        )
    except UserError as error:
        raise ApiError(400, str(error)) from error


def _read_seed(fields: Fields) -> int:
    """Read a seed, signed as in OpenAI's API. Without one, or with -1, each text differs, as with
    vLLM, llama.cpp and Ollama."""
    if fields.any("seed") in (None, -1):
        return secrets.randbits(DRAWN_SEED_BITS)
    return fields.whole("seed", 0, -(2**63), MAX_SEED) & MAX_SEED


def _read_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    entries = fields.any("logit_bias")
    if entries is None:
        return ()
    if not isinstance(entries, dict) or len(entries) > MAX_LOGIT_BIAS_ENTRIES:
        must = f"must be an object of at most {MAX_LOGIT_BIAS_ENTRIES} token ids and biases"
        raise fields.wrong("logit_bias", must)
    biases = list[tuple[int, float]]()
    for token, bias in entries.items():
        is_token = token.isdecimal() and len(token) <= MAX_ID_DIGITS
        if not is_token or not is_number(bias) or not -100 <= bias <= 100:
            has = f"logit_bias has {token!r:.80}: {bias!r:.80}"
            raise wrong("logit_bias", f"{has}; it must map token ids to numbers from -100 to 100")
        biases.append((int(token), float(bias)))
    return tuple(biases)


def _read_max_tokens(fields: Fields) -> int | None:
    names = [name for name in ("max_tokens", "max_completion_tokens", "n_predict") if fields.has(name)]
    values = [read_limit(fields, name) for name in names]
    if len(set(values)) > 1:
        raise wrong(names[0], f"{' and '.join(names)} are the same option; give one of them")
    return values[0] if values else None


def read_limit(fields: Fields, name: str) -> int | None:
    """Read a limit on tokens: 0 for as many as fit, which local servers write as -1; None without a limit."""
    given = fields.any(name)
    return None if given is None else 0 if given == -1 else fields.whole(name, 0, 1, MOST)


def read_stops(fields: Fields, name: str = "stop") -> tuple[str, ...]:
    """Read strings before which the text ends. Empty ones are left out, as local servers do."""
    stop = fields.any(name)
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    stops = [each for each in stops if each != ""] if isinstance(stops, list) else stops
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(each, str) and len(each) <= MAX_STOP_CHARS for each in stops)
    ):
        raise fields.wrong(name, f"must be at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters")
    return tuple(dict.fromkeys(stops))


def _read_stream_options(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong("stream_options", "stream_options needs stream: true")
    return options.flag("include_usage")


def read_format(given: Fields | None, param: str, within: str = "") -> tuple[str, dict[str, Any]]:
    """Read a text's format: text, any JSON object, or what a schema allows, which is always strict. A schema
    beside `json_object` counts, as with llama-server.

    Return its grammar, empty for text, and the format as a response repeats it. The schema's fields are in
    the object `within`; empty: in the format itself.
    """
    given = given or Fields({"type": "text"})
    kind = given.choice("type", "", ("text", "json_object", "json_schema"))
    if kind == "text":
        return "", {"type": kind}
    if kind == "json_object":
        schema = given.schema("schema") if given.any("schema") else None
        return json_grammar(param, schema), {"type": kind} | ({} if schema is None else {"schema": schema})
    inner = given.needed(within) if within else given
    schema = inner.schema("schema")
    told = {
        "name": inner.text("name", longest=64),
        "description": inner.text("description") or None,
        "schema": schema,
        "strict": inner.flag("strict", True),
    }
    return json_grammar(param, schema), {"type": kind, **told}


def json_grammar(param: str, schema: dict[str, Any] | None = None) -> str:
    """Return the grammar of JSON: of any object, or what a schema allows. Raises `ApiError` that blames
    `param`."""
    from common.grammar import json_schema_grammar

    schema = {"type": "object"} if schema is None else schema
    with blaming(param):
        for is_open in (True, False):  # the schema may leave no value within our bounds
            with contextlib.suppress(UserError):
                return json_schema_grammar(bounded(schema, is_open=is_open))
        return json_schema_grammar(schema)


def _read_own_grammar(ours: Fields) -> str:
    given = [name for name in ("grammar", "regex") if ours.has(name)]
    if len(given) > 1:
        raise unsupported("forerun.regex", "a grammar and a regex were both given; give one of them")
    if not given:
        return ""
    from common.grammar import lark_grammar, regex_grammar

    text = ours.text(given[0], longest=2**16)
    return lark_grammar(text) if given[0] == "grammar" else regex_grammar(text)
