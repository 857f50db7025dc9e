"""A conversation with a real daemon: turns are kept, sent along, taken back and saved."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.local_client import LocalClient
from forerun.chat.asking import Asking
from forerun.chat.display import Silent
from forerun.chat.parts import Part, Text
from forerun.chat.talk import Conversation, Talk
from tests.edge_client.api.served import TOKEN, served
from tests.edge_client.api.world import alone

pytestmark = [pytest.mark.api, pytest.mark.grpc]

GREEDY = Asking(temperature=0.0, seed=1, max_tokens=20)


class Stopping:
    """A display at which Ctrl-C is pressed when text comes."""

    def take(self, part: Part) -> None:
        if isinstance(part, Text):
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


async def test_each_question_comes_with_all_that_was_said(tmp_path: Path) -> None:
    async with served() as daemon:
        client = LocalClient(daemon.address, TOKEN)
        talk = Talk(Conversation("f"), GREEDY, lambda: client, Silent)
        first = await asyncio.to_thread(talk.ask, "abc")
        await asyncio.to_thread(talk.ask, "de")
        answers = [turn.answer for turn in talk.conversation.turns]
        assert await asyncio.to_thread(talk.models) == ["tiny@tiny-draft", "tiny", "tiny-draft", "default"]
    assert first is not None
    assert first.finish in ("stop", "length")
    assert answers == [alone("fabc"), alone(f"fabc{answers[0]}de")]
    assert len(talk.figures) == 2


async def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    async with served() as daemon:
        client = LocalClient(daemon.address, TOKEN)
        talk = Talk(Conversation(), GREEDY, lambda: client, Stopping)
        assert await asyncio.to_thread(talk.ask, "abc") is None
        assert daemon.world.device.live == {}
    assert talk.was_stopped
    assert talk.conversation.turns[0].question == "abc"
    assert alone("abc").startswith(talk.conversation.turns[0].answer)


def no_daemon() -> LocalClient:
    raise AssertionError("nobody is asked")


def test_a_conversation_is_saved_but_over_no_other_file(tmp_path: Path) -> None:
    talk = Talk(Conversation("s"), GREEDY, no_daemon, Silent)
    text, document = tmp_path / "a.txt", tmp_path / "a.json"
    for path in (text, document, text):
        talk.save(path)
    assert text.read_text() == "system:\ns\n\n"
    assert json.loads(document.read_text())["messages"] == [{"role": "system", "content": "s"}]
    other = tmp_path / "mine"
    other.write_text("precious")
    with pytest.raises(UserError, match="is there already"):
        talk.save(other)
    assert other.read_text() == "precious"
    with pytest.raises(UserError, match="cannot be written"):
        talk.save(tmp_path / "no" / "folder")


def test_there_may_be_nothing_to_take_back() -> None:
    with pytest.raises(UserError, match="nothing was said yet"):
        Talk(Conversation(), GREEDY, no_daemon, Silent).undo()
