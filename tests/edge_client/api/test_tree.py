"""The live tree: it grows and is pruned as the text comes, tells what became text, and ends with it."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.edge_client.api.served import TOKEN, page_world
from tests.edge_client.api.world import alone

pytestmark = [pytest.mark.api, pytest.mark.grpc]

AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
LENGTH = 60


async def watched(**fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any], bytes]:
    """The tree's events of one text, the text's own last word, and how the tree's stream ended."""
    body = {"prompt": "abc", "max_tokens": LENGTH, "temperature": 0, **fields}
    async with (
        page_world() as found,
        httpx.AsyncClient(base_url=found.url, headers=AUTHORIZED, timeout=60) as client,
    ):
        text = asyncio.create_task(client.post("/v1/completions", json=body))
        while not found.texts.live:  # noqa: ASYNC110 - nothing announces a text's beginning to this side
            await asyncio.sleep(0.001)
        (name,) = found.texts.live
        tree = await client.get(f"/v1/sessions/{name}/tree")
        answer = await text
    assert tree.status_code == 200
    assert tree.headers["content-type"].startswith("text/event-stream")
    frames = [each for each in tree.content.split(b"\n\n") if each.startswith(b"data: ")]
    return [json.loads(each[6:]) for each in frames[:-1]], answer.json(), frames[-1]


async def test_the_tree_grows_is_pruned_and_tells_what_became_text() -> None:
    events, answer, end = await watched(forerun={"policy": "tree"})
    trees = [event["tree"] for event in events if "tree" in event]
    assert end == b"data: [DONE]"
    assert answer["choices"][0]["text"] == alone(max_tokens=LENGTH, ignore_eos=True)
    assert trees[0]["begins"]
    assert not any(tree["begins"] for tree in trees[1:])
    first = trees[0]["position"]
    told = "".join(text for tree in trees for _, text in tree["committed"])
    assert alone(max_tokens=LENGTH, ignore_eos=True)[first:].startswith(told)
    assert len(told) == trees[-1]["position"] - first > 0
    assert any(node for tree in trees for node, _ in tree["committed"]), "no guess that was shown became text"
    before: dict[int, list[Any]] = {}
    lost = 0
    for tree in trees:
        nodes = {node[0]: node for node in tree["nodes"]}
        for node, text in tree["committed"]:
            assert not node or before[node][2] == text
        lost += len(before.keys() - nodes.keys() - {node for node, _ in tree["committed"]})
        assert all(node[1] in nodes or node[1] == tree["tip"][0] for node in tree["nodes"])
        before = nodes
    assert max(len(tree["nodes"]) for tree in trees) > 1
    assert lost > 0, "nothing was pruned"
    assert all(now != before for before, now in pairwise(map(json.dumps, trees)))
    figures = [event["figures"] for event in events if "figures" in event]
    assert figures[-1]["tokens"] == answer["forerun"]["tokens"] == LENGTH
    assert figures[-1]["target_steps"] == answer["forerun"]["target_steps"]
    assert [each["tokens"] for each in figures] == sorted(each["tokens"] for each in figures)


async def test_a_watcher_that_leaves_harms_nothing() -> None:
    body = {"prompt": "abc", "max_tokens": LENGTH, "temperature": 0}
    async with (
        page_world() as found,
        httpx.AsyncClient(base_url=found.url, headers=AUTHORIZED, timeout=60) as client,
    ):
        text = asyncio.create_task(client.post("/v1/completions", json=body))
        while not found.texts.live:  # noqa: ASYNC110 - nothing announces a text's beginning to this side
            await asyncio.sleep(0.001)
        (name,) = found.texts.live
        async with client.stream("GET", f"/v1/sessions/{name}/tree") as tree:
            await anext(tree.aiter_raw())
        answer = await text
        ended = await client.get(f"/v1/sessions/{name}/tree")
    assert answer.json()["choices"][0]["text"] == alone(max_tokens=LENGTH, ignore_eos=True)
    assert (ended.status_code, ended.json()["error"]["code"]) == (404, "session_not_found")
