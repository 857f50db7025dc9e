"""Tokens of texts and chats, by the fields of llama-server and of vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from edge_client.formats.token_requests import TokenizeRequest, tokens_json
from tests.clients.scripted import Bytes
from tests.edge_client.api.world import LETTERS, Letters, World, world

pytestmark = [pytest.mark.api, pytest.mark.grpc]

USER = [{"role": "user", "content": "abc"}]
BEGIN = 6


class Begun(Letters):
    """A target whose texts begin with a token of their own."""

    begin_ids = (BEGIN,)


async def tokens(found: World, **fields: Any) -> Any:
    answer = await found.client.post("/tokenize", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({"content": "abc"}, False),
        ({"content": "abc", "add_special": True}, True),
        ({"prompt": "abc"}, True),
        ({"prompt": "abc", "add_special_tokens": False}, False),
        ({"content": LETTERS[BEGIN] + "abc", "add_special": True}, True),
        ({"messages": USER}, False),
    ],
    ids=str,
)
async def test_the_beginning_token_is_added_where_its_server_adds_it(
    fields: dict[str, Any], begins: bool
) -> None:
    async with world() as found:
        found.texts.words = Begun()
        told = await tokens(found, **fields)
    assert told == [*([BEGIN] if begins else []), 1, 2, 3]


async def test_a_template_alone_decides_on_a_chats_beginning_token() -> None:
    """As transformers and vLLM do; a completion's prompt begins with it."""
    async with world() as found:
        found.texts.words = Begun()
        chat, text = await found.chat(), await found.complete()
    assert [each["usage"]["prompt_tokens"] for each in (chat, text)] == [3, 4]


async def test_tokens_come_with_their_pieces_if_asked() -> None:
    async with world() as found:
        own = {"content": "ab", "with_pieces": True, "return_token_strs": True}
        answer = (await found.client.post("/tokenize", json=own)).json()
        chat = (await found.client.post("/v1/tokenize", json={"messages": USER})).json()
    assert answer["tokens"] == [{"id": 1, "piece": "a"}, {"id": 2, "piece": "b"}]
    assert (answer["token_strs"], answer["count"]) == (["a", "b"], 2)
    assert chat == {"tokens": [1, 2, 3], "count": 3}


def test_a_piece_that_is_no_character_is_its_bytes() -> None:
    asked = TokenizeRequest("é", "content", begins=False, special=True, pieces=True, strings=True)
    told = tokens_json(asked, Bytes(), tuple("é".encode()))
    assert told["tokens"] == [{"id": byte, "piece": [byte]} for byte in "é".encode()]
    assert told["token_strs"] == ["\ufffd"] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "content"),
        ({"text": "abc"}, "content"),
        ({"content": 3}, "content"),
        ({"content": "a", "add_special": "yes"}, "add_special"),
        ({"messages": USER, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": []}, "messages"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    async with world() as found:
        answer = await found.client.post("/tokenize", json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
