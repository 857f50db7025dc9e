"""llama-server's own `/completion`, and the `/infill` of completion in editors (llama.vim, llama.vscode).

Fields and their order in the prompt: llama.cpp, tools/server/README.md, "POST /completion", "POST /infill".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from edge_client.formats.api_error import wrong
from edge_client.formats.constraints import TEXT, Refused
from edge_client.formats.detokenizer import TextSpan, text_of
from edge_client.formats.dialect import ChoiceEnd, Dialect, Json, StopReason, Usage
from edge_client.formats.fields import MAX_TEXT, Fields
from edge_client.formats.infill import ExtraFile, Gap
from edge_client.formats.message import ContentAdded, Message, MessagePart
from edge_client.formats.openai import read_prompts
from edge_client.formats.parsed_request import MOST, ONE_TEXT, ParsedRequest, Prompt, read_asked

MAX_EXTRA = 1024
"""Pieces of other files. Editors send some tens."""


class LlamaCompletion(Dialect):
    """Reads and forms llama-server's `/completion`.

    A request for no tokens (`n_predict` 0), by which editors let the server read files ahead, writes one
    token and does not show it.
    """

    name, path, prefix, param = "completion", "/completion", "cmpl-", "prompt"
    refused: ClassVar[Refused] = {
        "n": ((1,), "use /v1/completions"),
        "n_probs": ((0,), "use /v1/completions with logprobs"),
        "response_format": (TEXT, "use json_schema"),
    }

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        prompt, *more = read_prompts(fields)
        if more:
            raise wrong("prompt", "several prompts in one request are for /v1/completions; send one here")
        return _read(fields, prompt, fields.flag("stream") or fields.flag("return_tokens"))

    def added(self, parts: Sequence[MessagePart], ours: Json, choice: int) -> list[Json]:
        spans = [span for part in parts if isinstance(part, ContentAdded) for span in part.spans]
        text, tokens = text_of(spans), self._tokens(spans)
        if not (text or tokens or ours) or self.heading.form["hidden"]:
            return []
        chunk = {"index": choice, "content": text, "tokens": tokens, "stop": False}
        return [{**chunk, "forerun": ours} if ours else chunk]

    def end(self, end: ChoiceEnd, usage: Usage) -> list[Json]:
        return [self._last((), end, usage)]

    def whole(self, choices: Sequence[tuple[Message, ChoiceEnd]], usage: Usage) -> Json:
        ((message, end),) = choices
        return self._last(message.content, end, usage)

    def _last(self, spans: Sequence[TextSpan], end: ChoiceEnd, usage: Usage) -> Json:
        """Return the last object, or what the request selected of it."""
        hidden, shown = self.heading.form["hidden"], self.heading.form["shown"]
        content, is_cut = "" if hidden else text_of(spans), end.finish is StopReason.LENGTH
        last = {
            "index": 0,
            "content": content,
            "tokens": self._tokens(spans),
            "stop": True,
            "model": self.heading.model,
            "tokens_predicted": 0 if hidden else usage.text,
            "tokens_evaluated": usage.prompt,
            "tokens_cached": usage.cached,
            "truncated": False,
            "stop_type": "word" if end.stopped_by is not None else "limit" if is_cut else "eos",
            "stopping_word": end.stopped_by or "",
            "has_new_line": "\n" in content,
            "generation_settings": {"seed": end.ours["seed"]},
            "timings": _timings(end.ours, usage),
            "forerun": end.ours,
        }
        return _selected(last, shown) if shown else last

    def _tokens(self, spans: Sequence[TextSpan]) -> list[int]:
        return [span.token for span in spans if span.token is not None and self.heading.form["tokens"]]


class InfillCompletion(LlamaCompletion):
    """Reads and forms `/infill`."""

    name, path, prefix, param = "infill", "/infill", "infill-", "input_prefix"
    refused: ClassVar[Refused] = {
        **LlamaCompletion.refused,
        "samplers": None,  # editors always send some, which leave the best tokens as they are
    }

    @staticmethod
    def read(fields: Fields) -> ParsedRequest:
        names = ("input_prefix", "input_suffix", "prompt")
        prefix, suffix, begun = (fields.text(name, longest=MAX_TEXT) for name in names)
        extra = [_read_extra(each) for each in fields.entries("input_extra", MAX_EXTRA)]
        return _read(fields, Gap(prefix, suffix, begun, extra))


def _read(fields: Fields, prompt: Prompt, tokens: bool = False) -> ParsedRequest:
    shown = [each for each in fields.list("response_fields", 256) if isinstance(each, str)]
    number = fields.whole("n_predict", -1, -2, MOST)
    form = {"hidden": number == 0, "tokens": tokens and number != 0, "shown": shown}
    own: Json = {"n_predict": None}
    if fields.has("n_predict"):
        own["max_tokens"] = max(number, 1) if number >= 0 else None
    return read_asked(fields.having(**own, **ONE_TEXT), prompt, form=form)


def _read_extra(fields: Fields) -> ExtraFile:
    return ExtraFile(fields.text("filename", longest=4096), fields.text("text", longest=MAX_TEXT))


def _timings(ours: Mapping[str, Any], usage: Usage) -> Json:
    """Return llama-server's figures. The prompt's time is that of the first token, queues included, which is
    left out of the pace of the others."""
    first = ours["first_token_ms"]
    rest = round(max(0.0, ours["elapsed_ms"] - first), 3)
    return {
        "cache_n": usage.cached,
        "prompt_n": usage.prompt - usage.cached,
        **_pace("prompt", usage.prompt - usage.cached, first),
        "predicted_n": usage.text,
        **_pace("predicted", usage.text - 1, rest),
        "draft_n": ours["proposed"],
        "draft_n_accepted": ours["accepted"],
    }


def _pace(name: str, count: int, took: float) -> Json:
    return {
        f"{name}_ms": took,
        f"{name}_per_token_ms": took / count if count > 0 else 0.0,
        f"{name}_per_second": 1e3 * count / took if count > 0 and took else 0.0,
    }


def _selected(last: Json, names: Sequence[str]) -> Json:
    """Return fields by name, each under its whole name; `a/b` is the field `b` of `a`."""
    told = dict[str, Any]()
    for name in names:
        value: Any = last
        for step in name.split("/"):
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            told[name] = value
    return told
