"""A conversation: messages as typed, the request of each, commands, and turns with a real daemon."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
from pathlib import Path

import pytest

from common.errors import UserError
from common.sampling import MAX_SEED
from edge_client.process.client import LocalClient
from edge_client.texts.events import TextAdded, TextEvent
from forerun.chat.asking import Asking, add_asking, add_daemon, asking_from
from forerun.chat.display import Silent
from forerun.chat.talk import (
    COMMANDS,
    MORE,
    PROMPT,
    CommandOutcome,
    Conversation,
    Messages,
    Talk,
    Turn,
    is_command,
    reader,
    run_command,
)
from tests import wording
from tests.edge_client.api.served import TOKEN, served
from tests.edge_client.api.world import alone
from tests.support.small_server import Handler, serving

GREEDY = Asking(temperature=0.0, seed=1, max_tokens=20)


def no_daemon() -> LocalClient:
    raise AssertionError("nobody is asked")


def talk(*turns: Turn, seed: int | None = None) -> Talk:
    return Talk(Conversation(turns=list(turns)), Asking(seed=seed), no_daemon, Silent)


# Messages ---------------------------------------------------------------------------------------------------


def read(*lines: str | type[BaseException]) -> tuple[list[str], list[str]]:
    """All messages, and the prompts that were shown."""
    left = iter((*lines, EOFError))
    prompts = list[str]()

    def line(prompt: str) -> str:
        prompts.append(prompt)
        found = next(left, EOFError)
        if isinstance(found, str):
            return found
        raise found

    return list(iter(Messages(line).next, None)), prompts


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("a", "", "b"), ["a", "", "b"]),
        (("a\\", "b\\", "c", "d"), ["a\nb\nc", "d"]),
        (("a\\",), ["a"]),
        (('"""', "a", "", "b", '"""', "c"), ["a\n\nb", "c"]),
        (('"""a', 'b""" ignored', "c"), ["a\nb", "c"]),
        (('"""a"""', "c"), ["a", "c"]),
        (('"""', "a"), ["a"]),
    ],
)
def test_lines_become_messages(lines: tuple[str, ...], expected: list[str]) -> None:
    assert read(*lines)[0] == expected


def test_ctrl_c_drops_what_was_begun() -> None:
    assert read("a\\", KeyboardInterrupt, "b") == (["b"], [PROMPT, MORE, PROMPT, PROMPT])


def test_a_pipe_has_no_prompts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a\r\nb"))
    assert list(iter(Messages(reader(False)).next, None)) == ["a", "b"]
    assert capsys.readouterr().out == ""


# Requests ---------------------------------------------------------------------------------------------------


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_asking(parser, max_tokens=None)
    add_daemon(parser)
    return parser.parse_args(words)


def test_what_was_not_given_is_the_daemons_own_and_each_seed_another() -> None:
    bodies = [Asking().body({"prompt": "a"}) for _ in range(8)]
    assert set(bodies[0]) == {"prompt", "model", "seed", "stream", "forerun"}
    assert bodies[0]["forerun"] == {"origins": True, "revise": False, "speculate": True}
    assert len({body["seed"] for body in bodies}) == 8
    assert all(0 <= body["seed"] < MAX_SEED for body in bodies)


def test_options_become_the_request() -> None:
    options = parsed("--seed", "7", "--temperature", "0", "--max-tokens", "5", "--no-speculation")
    body = asking_from(options, revise=True, name="chat").body({})
    assert (body["seed"], body["temperature"], body["max_tokens"]) == (7, 0.0, 5)
    assert body["user"].startswith("chat-")
    assert body["forerun"] == {"origins": True, "revise": True, "speculate": False}
    with wording.raises(UserError):
        asking_from(parsed("--max-tokens", "0"), revise=False, name="chat")


# Commands ---------------------------------------------------------------------------------------------------


def test_only_a_slash_at_the_very_beginning_makes_a_command() -> None:
    assert is_command("/quit")
    assert not is_command(" /quit")
    assert run_command(talk(), "/quit").ends
    assert all(name in run_command(talk(), "/help").words for name in COMMANDS)
    with wording.raises(UserError):
        run_command(talk(), "/usr/bin is a folder")


def test_the_conversation_is_cleared_and_taken_back() -> None:
    one = talk(Turn("a", "b"), Turn("c", "d"))
    wording.keep(run_command(one, "/undo").words)
    assert one.conversation.turns == [Turn("a", "b")]
    run_command(one, "/clear")
    assert one.conversation.messages() == []
    with wording.raises(UserError):
        run_command(one, "/undo")
    run_command(one, "/system be brief")
    assert one.conversation.messages() == [{"role": "system", "content": "be brief"}]
    run_command(one, "/system")
    assert one.conversation.messages() == []


def test_retry_asks_the_last_question_again() -> None:
    one = talk(Turn("a", "b"))
    with wording.raises(UserError):
        run_command(one, "/retry")
    one.last_question = "a"
    assert run_command(one, "/retry") == CommandOutcome(question="a")
    assert one.conversation.turns == []
    assert run_command(one, "/retry").question == "a", "also if the answer failed"
    fixed = talk(seed=1)
    fixed.last_question = "a"
    assert run_command(fixed, "/retry").words


def models(request: Handler) -> None:
    assert request.path == "/v1/models"
    request.reply(200, b'{"data": [{"id": "one"}, {"id": "two"}]}', Content_Type="application/json")


def test_a_model_must_be_one_of_the_daemons() -> None:
    with serving(models) as address:
        one = Talk(Conversation(), Asking(), lambda: LocalClient(address), Silent)
        assert run_command(one, "/model").words.splitlines() == ["* one", "  two"]
        run_command(one, "/model two")
        assert one.asking.model == "two"
        with wording.raises(UserError):
            run_command(one, "/model three")


def test_a_conversation_is_saved_but_over_no_other_file(tmp_path: Path) -> None:
    one = Talk(Conversation("s"), GREEDY, no_daemon, Silent)
    for name in ("a.txt", "a.json", "a.txt"):
        run_command(one, f"/save {tmp_path}/{name}")
    assert (tmp_path / "a.txt").read_text() == "system:\ns\n\n"
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["messages"] == [{"role": "system", "content": "s"}]
    (tmp_path / "mine").write_text("precious")
    for name in (f" {tmp_path}/mine", f" {tmp_path}/no/folder", ""):
        with wording.raises(UserError):
            run_command(one, f"/save{name}")
    assert (tmp_path / "mine").read_text() == "precious"


# With a daemon ----------------------------------------------------------------------------------------------


class Stopping:
    """A display at which Ctrl-C is pressed when text comes."""

    def take(self, part: TextEvent) -> None:
        if isinstance(part, TextAdded):
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


@pytest.mark.api
@pytest.mark.grpc
async def test_each_question_comes_with_all_that_was_said() -> None:
    async with served() as daemon:
        client = LocalClient(daemon.address, TOKEN)
        one = Talk(Conversation("f"), GREEDY, lambda: client, Silent)
        first = await asyncio.to_thread(one.ask, "abc")
        await asyncio.to_thread(one.ask, "de")
        answers = [turn.answer for turn in one.conversation.turns]
        assert await asyncio.to_thread(one.models) == ["tiny@tiny-draft", "tiny", "tiny-draft", "default"]
    assert first is not None
    assert first.finish in ("stop", "length")
    assert answers == [alone("fabc"), alone(f"fabc{answers[0]}de")]
    assert len(one.figures) == 2


@pytest.mark.api
@pytest.mark.grpc
async def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    async with served() as daemon:
        client = LocalClient(daemon.address, TOKEN)
        one = Talk(Conversation(), GREEDY, lambda: client, Stopping)
        assert await asyncio.to_thread(one.ask, "abc") is None
        assert daemon.world.texts.live == {}
    assert one.was_stopped
    assert one.conversation.turns[0].question == "abc"
    assert alone("abc").startswith(one.conversation.turns[0].answer)
