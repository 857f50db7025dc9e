"""What both endpoints read of a request: sampling, limits, format, and our own object `forerun`."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from common.acceptance import COUPLED, Acceptance, make_acceptance
from common.errors import UserError
from common.sampling import DRAWN_SEED_BITS, MAX_LOGIT_BIAS_ENTRIES, MAX_SEED, SamplingParams
from edge_client.api.errors import ApiError, unsupported, wrong
from edge_client.api.fields import Fields
from edge_client.core.config import Fallback
from edge_client.core.policies import make_policy
from edge_client.daemon.request import MAX_STOPS

MOST = 2**31 - 1

NO_TOOLS = (
    "the model's text is all that comes. For structured output use response_format with a json_schema; with "
    'tool_choice: "none" a request that lists tools is answered without them'
)

NOT_DONE: dict[str, tuple[tuple[Any, ...], str]] = {
    "tool_choice": (("none", "auto"), NO_TOOLS),
    "parallel_tool_calls": ((True, False), NO_TOOLS),
    "function_call": (("none", "auto"), NO_TOOLS),
    "n": ((1,), "one text a request; ask again with another seed for more"),
    "best_of": ((1,), "one text a request; ask again with another seed for more"),
    "modalities": ((["text"],), "text only"),
    "audio": ((), "text only"),
    "prediction": ((), "the draft model predicts already"),
    "service_tier": (("auto", "default"), "all requests are served alike"),
    "reasoning_effort": (("none",), "give it in the chat template's own settings, chat_template_kwargs"),
    "verbosity": (("medium",), "say in the prompt how long the answer should be"),
    "web_search_options": ((), "nothing is searched"),
}
"""Fields of OpenAI's that are known and not done: the values that change nothing, and what to do instead."""

ADVISABLE = {name: (name,) for name in ("temperature", "top_k", "top_p", "min_p")} | {
    "repetition_penalty": ("repetition_penalty", "repeat_penalty")
}
"""Sampling values that a target's makers may advise, and the request's fields that name them."""

MAX_TOOLS = 1024
"""Tools that a request may list without their being used; OpenAI's API allows 128."""


@dataclass(frozen=True, slots=True)
class Extras:
    """Our own object in a request: `{"forerun": {...}}`."""

    policy: str = "adaptive"
    speculate: bool = True  # false: the verifier alone
    recall: bool | None = None  # None: as the daemon is configured
    fallback: Fallback | None = None  # None: as the daemon is configured
    acceptance: Acceptance = COUPLED
    origins: bool = False  # tell of every token who wrote it
    revise: bool = False  # show guesses that may be taken back
    grammar: str = ""  # of llguidance


@dataclass(frozen=True, slots=True)
class Asked:
    """What both endpoints have in common. `max_tokens` None: as many as fit."""

    model: str
    sampling: SamplingParams  # its `max_tokens` is not read
    max_tokens: int | None
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    client: str  # whose queue it waits in
    extras: Extras
    left_out: frozenset[str]  # sampling values that the request does not name


def read_asked(fields: Fields) -> Asked:
    """The common fields. Raises `ApiError` that names the field."""
    for name, (allowed, why) in NOT_DONE.items():
        fields.only(name, allowed, why)
    _read_without_effect(fields)
    extras = _read_extras(fields)
    stream = fields.flag("stream")
    user, identifier = (fields.text(name, longest=512) for name in ("user", "safety_identifier"))
    return Asked(
        model=fields.text("model", longest=512),
        sampling=_read_sampling(fields, _read_grammar(fields, extras)),
        max_tokens=_read_max_tokens(fields),
        stops=_read_stops(fields),
        stream=stream,
        include_usage=_read_stream_options(fields, stream),
        client=user or identifier,
        extras=extras,
        left_out=frozenset(name for name, names in ADVISABLE.items() if not any(map(fields.has, names))),
    )


def _read_without_effect(fields: Fields) -> None:
    """Read fields that change no text: labels, which are not stored here, and tools that the request forbids
    the model to use. Prompts are cached by their tokens, whatever the key."""
    fields.flag("store")
    fields.object("metadata")
    fields.text("prompt_cache_key")
    for listed, chosen in (("tools", "tool_choice"), ("functions", "function_call")):
        if fields.list(listed, MAX_TOOLS) and fields.any(chosen) != "none":
            raise unsupported(listed, f"{listed} is not supported here: {NO_TOOLS}")


def _read_sampling(fields: Fields, grammar: str) -> SamplingParams:
    top_k = fields.whole("top_k", 0, -1, MOST)
    penalty_names = [name for name in ("repetition_penalty", "repeat_penalty") if fields.has(name)]
    if len(penalty_names) > 1:
        raise wrong("repeat_penalty", "repetition_penalty and repeat_penalty are the same; give one of them")
    penalty = fields.number(penalty_names[0], 1.0, 1e-6, 100.0) if penalty_names else 1.0
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    try:
        return SamplingParams(
            temperature=fields.number("temperature", 1.0, 0.0, 100.0),
            top_k=max(0, top_k),  # -1 is all tokens for vLLM's clients
            top_p=top_p or 1e-9,  # 0 is the best token alone for OpenAI's
            min_p=fields.number("min_p", 0.0, 0.0, 1.0),
            repetition_penalty=penalty,
            presence_penalty=fields.number("presence_penalty", 0.0, -100.0, 100.0),
            frequency_penalty=fields.number("frequency_penalty", 0.0, -100.0, 100.0),
            logit_bias=_read_logit_bias(fields),
            stop_token_ids=_read_stop_tokens(fields),
            ignore_eos=fields.flag("ignore_eos"),
            seed=_read_seed(fields),
            grammar=grammar,
        )
    except UserError as error:
        raise ApiError(400, str(error)) from error


def _read_seed(fields: Fields) -> int:
    """OpenAI's seeds are signed; without one each text is another, as users expect of a temperature."""
    if not fields.has("seed"):
        return secrets.randbits(DRAWN_SEED_BITS)
    return fields.whole("seed", 0, -(2**63), MAX_SEED) & MAX_SEED


def _read_logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    entries = fields.any("logit_bias")
    if entries is None:
        return ()
    if not isinstance(entries, dict) or len(entries) > MAX_LOGIT_BIAS_ENTRIES:
        raise fields.wrong(
            "logit_bias", f"must be an object of at most {MAX_LOGIT_BIAS_ENTRIES} token ids and biases"
        )
    found = list[tuple[int, float]]()
    for token, bias in entries.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not token.isdecimal() or not is_number or not -100 <= bias <= 100:
            raise wrong(
                "logit_bias", f"logit_bias has {token!r}: {bias!r}; a token id and -100 to 100 were expected"
            )
        found.append((int(token), float(bias)))
    return tuple(found)


def _read_stop_tokens(fields: Fields) -> tuple[int, ...]:
    tokens = fields.list("stop_token_ids", 128) or []
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in tokens):
        raise fields.wrong("stop_token_ids", "must hold token ids only")
    return tuple(tokens)


def _read_max_tokens(fields: Fields) -> int | None:
    names = [name for name in ("max_tokens", "max_completion_tokens") if fields.has(name)]
    values = [fields.whole(name, 0, 1, MOST) for name in names]
    if len(set(values)) > 1:
        raise wrong(
            names[0], "max_tokens and max_completion_tokens are the same and differ; give one of them"
        )
    return values[0] if values else None


def _read_stops(fields: Fields) -> tuple[str, ...]:
    stop = fields.any("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise fields.wrong("stop", "must be a string, or a list of strings that are not empty")
    if len(stops) > MAX_STOPS:
        raise fields.wrong("stop", f"must have at most {MAX_STOPS} strings")
    return tuple(dict.fromkeys(stops))


def _read_stream_options(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong("stream_options", "stream_options goes with stream: true only")
    include_usage = options.flag("include_usage")
    options.only("include_obfuscation", (False,), "on this machine nobody can measure its sizes")
    options.finish()
    return include_usage


def _read_grammar(fields: Fields, extras: Extras) -> str:
    """Of `response_format`, or of our own object."""
    given = fields.object("response_format")
    if given is None:
        return extras.grammar
    kind = given.choice("type", "", ("text", "json_object", "json_schema"))
    schema = _read_schema(given) if kind == "json_schema" else None
    given.finish()
    if kind == "text":
        return extras.grammar
    if extras.grammar:
        raise wrong(
            "response_format", "response_format and a grammar were asked for; only one can be held to"
        )
    from common.grammar import json_object_grammar, json_schema_grammar

    try:
        return json_object_grammar() if schema is None else json_schema_grammar(schema)
    except UserError as error:
        raise wrong("response_format", str(error)) from error


def _read_schema(given: Fields) -> dict[str, Any]:
    inner = given.object("json_schema")
    if inner is None:
        raise wrong("response_format.json_schema", "response_format.json_schema is missing")
    inner.text("name", longest=64)
    inner.text("description")
    inner.flag("strict")  # it is always held to strictly
    schema = inner.any("schema")
    inner.finish()
    if not isinstance(schema, dict):
        raise wrong("response_format.json_schema.schema", "the schema must be an object")
    return schema


def _read_extras(fields: Fields) -> Extras:
    ours = fields.object("forerun")
    if ours is None:
        return Extras()
    policy = ours.text("policy", "adaptive", 256)
    fallback = ours.choice("fallback", "", ("", *(each.value for each in Fallback)))
    rule = ours.text("acceptance", "coupled", 256)
    try:
        make_policy(policy)
        acceptance = make_acceptance(rule)
        grammar = _read_own_grammar(ours)
    except UserError as error:
        raise ApiError(400, f"forerun: {error}", param="forerun") from error
    found = Extras(
        policy=policy,
        speculate=ours.flag("speculate", True),
        recall=ours.flag("recall") if ours.has("recall") else None,
        fallback=Fallback(fallback) if fallback else None,
        acceptance=acceptance,
        origins=ours.flag("origins"),
        revise=ours.flag("revise"),
        grammar=grammar,
    )
    ours.finish()
    return found


def _read_own_grammar(ours: Fields) -> str:
    given = [name for name in ("grammar", "regex") if ours.has(name)]
    if len(given) > 1:
        raise unsupported("forerun.regex", "a grammar and a regex were asked for; only one can be held to")
    if not given:
        return ""
    from common.grammar import lark_grammar, regex_grammar

    text = ours.text(given[0], longest=2**16)
    return lark_grammar(text) if given[0] == "grammar" else regex_grammar(text)
