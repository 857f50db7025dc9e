"""What other servers call a constraint of a text: kept under our own name, or refused.

The names are those of llama.cpp (tools/server/README.md), vLLM ("OpenAI-Compatible Server", extra parameters
and structured outputs) and SGLang ("Sampling Parameters").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from edge_client.formats.fields import Fields
from edge_client.formats.json_text import read_json
from edge_client.formats.parsed_request import ParsedRequest, blaming, json_grammar, with_format

Refused = Mapping[str, tuple[tuple[Any, ...], str] | None]
"""Unsupported fields of a request: the values that change nothing, and advice for others. None: the field is
ignored all the same."""

NOTHING: tuple[Any, ...] = ("", [], {}, False)
ZERO, ONE = (0, 0.0), (1, 1.0)
SAMPLERS = "use temperature, top_k, top_p or min_p"
LARK = "use forerun.grammar, in llguidance's dialect of Lark, or a JSON schema"


TEXT = ({"type": "text"},)
"""The values of `response_format` that change nothing."""


def _rows(names: str, allowed: tuple[Any, ...], advice: str) -> Refused:
    return dict.fromkeys(names.split(), (allowed, advice))


OURS: Mapping[str, tuple[Any, ...]] = {
    "speculate": (True,),
    "policy": ("", "adaptive"),
    "recall": (),
    "reference": NOTHING,
    "fallback": ("",),
    "acceptance": ("", "coupled"),
    "origins": (False,),
    "revise": (False,),
}
"""Fields of our own object, with the values that change nothing outside of it."""

NOT_DONE: Refused = {
    **_rows("modalities", (["text"],), "text only"),
    **_rows("audio", (), "text only"),
    **_rows("web_search_options", (), "nothing is searched"),
    **_rows("best_of", (1,), "ask for n texts and choose among them"),
    **_rows("echo", (False,), "prepend the prompt to the answer in the client"),
    **_rows("use_beam_search", (False,), "ask for n texts and choose among them"),
    **_rows("grammar ebnf guided_grammar", NOTHING, LARK),
    **_rows("format", NOTHING, "use response_format"),
    **_rows("structural_tag", NOTHING, "use tools with strict: true, or response_format"),
    **_rows("whitespace_pattern guided_whitespace_pattern", NOTHING, "set x-guidance in the schema"),
    **_rows("min_tokens min_new_tokens", (0,), "use ignore_eos with max_tokens, or forerun.regex"),
    **_rows("bad_words allowed_token_ids", NOTHING, "use logit_bias, or forerun.regex"),
    **_rows("stop_regex", NOTHING, "use stop, or forerun.regex"),
    **_rows("include_stop_str_in_output no_stop_trim", (False,), "forerun.stopped_by names the stop string"),
    **_rows("skip_special_tokens", (True,), "texts show no control tokens"),
    **_rows("typical_p tfs_z", ONE, SAMPLERS),
    **_rows("mirostat mirostat_mode dry_multiplier xtc_probability dynatemp_range", ZERO, SAMPLERS),
    **_rows("smoothing_factor min_keep top_a", ZERO, SAMPLERS),
    **_rows("top_n_sigma", (-1, -1.0, *ZERO), SAMPLERS),
    **_rows("samplers logits_processors custom_logit_processor", NOTHING, SAMPLERS),
    **_rows("lora lora_path", NOTHING, "serve the adapted model and name it as model"),
    **_rows("thread conversation", (), "send the whole conversation"),
    **_rows("truncate_prompt_tokens", (-1,), "shorten the prompt in the client"),
    **{name: (allowed, f"give it as forerun.{name}") for name, allowed in OURS.items()},
}


def refuse(fields: Fields, refused: Refused = NOT_DONE) -> None:
    """Raise `ApiError` for an unsupported field that would change the text."""
    for name, row in refused.items():
        if row is not None:
            fields.only(name, *row)


def with_forms(fields: Fields, asked: ParsedRequest) -> ParsedRequest:
    """Return a request with the grammar of the form that another server's field names. Raises `ApiError`,
    also for several forms of one text."""
    places = [(fields, FORMS)]
    if (inner := fields.object("structured_outputs")) is not None:
        refuse(inner)
        places.append((inner, STRUCTURED))
    for place, readers in places:
        for name, read in readers.items():
            if place.any(name) not in (None, *NOTHING):
                param = f"{place.at}{name}"
                with blaming(param):
                    asked = with_format(asked, param, read(place, name))
    return asked


def _schema(fields: Fields, name: str) -> str:
    """Read a JSON schema, or its text."""
    schema = fields.any(name)
    if isinstance(schema, str):
        try:
            schema = read_json(schema)
        except (ValueError, RecursionError):
            schema = None
    if not isinstance(schema, dict):
        raise fields.wrong(name, "must be a JSON schema, an object or its text")
    return json_grammar(f"{fields.at}{name}", schema)


def _regex(fields: Fields, name: str) -> str:
    from common.grammar import regex_grammar

    return regex_grammar(fields.text(name, longest=2**16))


def _choice(fields: Fields, name: str) -> str:
    """Read a list of texts, of which the whole text must be one."""
    from common.grammar import lark_grammar

    texts = fields.list(name, 1024)
    if not all(isinstance(each, str) and each for each in texts):
        raise fields.wrong(name, "must be a list of strings that are not empty")
    return lark_grammar(f"start: {' | '.join(json.dumps(each, ensure_ascii=False) for each in texts)}")


def _object(fields: Fields, name: str) -> str:
    return json_grammar(f"{fields.at}{name}") if fields.flag(name) else ""


Readers = Mapping[str, Callable[[Fields, str], str]]
"""Return the grammar of a field by its name."""

FORMS: Readers = {
    "guided_json": _schema,
    "json_schema": _schema,
    "guided_regex": _regex,
    "regex": _regex,
    "guided_choice": _choice,
}
STRUCTURED: Readers = {"json": _schema, "json_object": _object, "regex": _regex, "choice": _choice}
"""Fields of vLLM's `structured_outputs`."""
