"""Reads the requests for tokens and texts, with the fields of llama-server and of vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge_client.formats.detokenizer import Words, spelled
from edge_client.formats.dialect import Json
from edge_client.formats.fields import MAX_TEXT, Fields
from edge_client.formats.openai import read_chat
from edge_client.formats.parsed_request import ChatPrompt, read_model

MOST_TOKENS = 2**21
"""Limit on the tokens of one request, above the context of any target."""


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Holds a request for the tokens of a text or of a chat."""

    prompt: str | ChatPrompt
    param: str  # the field that holds it
    begins: bool  # the target's beginning token comes first
    special: bool  # texts of control tokens become these tokens
    pieces: bool  # each id with its bytes, as llama-server's `with_pieces`
    strings: bool  # the tokens' texts, too, as vLLM's `return_token_strs`


def read_tokenize(fields: Fields) -> TokenizeRequest:
    """Read llama-server's `content`, or vLLM's `prompt` or `messages`. Raises `ApiError`.

    By default a `prompt` begins as in /v1/completions, `content` without the beginning token.
    """
    read_model(fields)
    param = next((name for name in ("content", "prompt", "messages") if fields.has(name)), "")
    if not param:
        raise fields.missing("content")
    prompt = read_chat(fields) if param == "messages" else fields.text(param, longest=MAX_TEXT)
    if param == "messages":
        template = "the chat's template decides"
        for name, own in (("add_special", False), ("add_special_tokens", False), ("parse_special", True)):
            fields.only(name, (own,), template)
    begins = fields.flag("add_special", fields.flag("add_special_tokens", param == "prompt"))
    return TokenizeRequest(
        prompt,
        param,
        begins,
        fields.flag("parse_special", True),
        fields.flag("with_pieces"),
        fields.flag("return_token_strs"),
    )


def tokens_json(asked: TokenizeRequest, words: Words, tokens: tuple[int, ...]) -> Json:
    """Return the response with these tokens."""
    pieces = [{"id": token, "piece": _piece(words.piece(token))} for token in tokens if asked.pieces]
    strings = {"token_strs": [spelled(words, [token]) for token in tokens]} if asked.strings else {}
    return {"tokens": pieces or list(tokens), "count": len(tokens), **strings}


def read_detokenize(fields: Fields) -> list[Any]:
    """Read the token ids of a text. Raises `ApiError` that names the field."""
    read_model(fields)
    return fields.list("tokens", MOST_TOKENS)


def read_template(fields: Fields) -> ChatPrompt:
    """Read the chat that is to be rendered. Raises `ApiError` that names the field."""
    read_model(fields)
    return read_chat(fields)


def _piece(data: bytes) -> str | list[int]:
    """Return a token's text, or its bytes if they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
