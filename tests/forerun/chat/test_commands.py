"""Slash commands: what each does to the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import UserError
from edge_client.local_client import LocalClient
from forerun.chat.asking import Asking
from forerun.chat.commands import COMMANDS, Outcome, is_command, run_command
from forerun.chat.display import Silent
from forerun.chat.talk import Conversation, Talk, Turn
from tests.edge_client.small_server import Handler, serving


def no_daemon() -> LocalClient:
    raise AssertionError("nobody is asked")


def talk(*turns: Turn, seed: int | None = None) -> Talk:
    return Talk(Conversation(turns=list(turns)), Asking(seed=seed), no_daemon, Silent)


def test_help_tells_of_every_command() -> None:
    words = run_command(talk(), "/help").words
    assert all(name in words for name in COMMANDS)
    assert run_command(talk(), "/quit").ends


def test_only_a_slash_at_the_very_beginning_makes_a_command() -> None:
    assert is_command("/quit")
    assert not is_command(" /quit")
    with pytest.raises(UserError, match="there is no /usr/bin"):
        run_command(talk(), "/usr/bin is a folder")


def test_the_conversation_is_cleared_and_taken_back() -> None:
    one = talk(Turn("a", "b"), Turn("c", "d"))
    assert run_command(one, "/undo").words == "taken back: c"
    assert one.conversation.turns == [Turn("a", "b")]
    run_command(one, "/clear")
    assert one.conversation.messages() == []
    run_command(one, "/system be brief")
    assert one.conversation.messages() == [{"role": "system", "content": "be brief"}]
    run_command(one, "/system")
    assert one.conversation.messages() == []


def test_retry_asks_the_last_question_again() -> None:
    one = talk(Turn("a", "b"))
    with pytest.raises(UserError, match="nothing was asked yet"):
        run_command(one, "/retry")
    one.last_question = "a"
    assert run_command(one, "/retry") == Outcome(question="a")
    assert one.conversation.turns == []
    assert run_command(one, "/retry").question == "a", "also if the answer failed"
    fixed = talk(seed=1)
    fixed.last_question = "a"
    assert "the same" in run_command(fixed, "/retry").words


def models(request: Handler) -> None:
    assert request.path == "/v1/models"
    request.reply(200, b'{"data": [{"id": "one"}, {"id": "two"}]}', Content_Type="application/json")


def test_a_model_must_be_one_of_the_daemons() -> None:
    with serving(models) as address:
        one = Talk(Conversation(), Asking(), lambda: LocalClient(address), Silent)
        assert run_command(one, "/model").words == "* one\n  two"
        run_command(one, "/model two")
        assert one.asking.model == "two"
        with pytest.raises(UserError, match="no model 'three'; there are: one, two"):
            run_command(one, "/model three")


def test_save_and_stats(tmp_path: Path) -> None:
    one = talk(Turn("a", "b"))
    run_command(one, f"/save {tmp_path}/x")
    assert (tmp_path / "x").read_text() == "user:\na\n\nassistant:\nb\n\n"
    with pytest.raises(UserError, match="name a file"):
        run_command(one, "/save")
    assert run_command(one, "/stats").words == "nothing was written yet"
