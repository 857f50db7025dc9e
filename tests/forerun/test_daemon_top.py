"""`forerun top` of the daemon: once, again and again, and over a restart."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
from pathlib import Path

import pytest

from common.errors import UnavailableError
from forerun import daemon_top
from forerun.daemon_top import BACK, HOME, OTHER_SCREEN
from tests.forerun.beside import command, daemon, state_folder

pytestmark = [pytest.mark.api, pytest.mark.grpc]

OPTIONS = argparse.Namespace(interval=0.1, json=False, sort="pace", system=False)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return state_folder(tmp_path, monkeypatch)


async def test_once(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with daemon(state):
        assert await command("top", "--once") == 0
        lines = capsys.readouterr().out.splitlines()
        assert await command("top", "--once", "--json") == 0
        document = json.loads(capsys.readouterr().out)
    assert lines[:3] == ["mode: ahead", "texts: 0 under way, 0 waiting", ""]
    assert lines[3].startswith("ID")
    assert document == {"status": {"mode": "ahead"}, "texts": [], "waiting": 0}


async def test_without_a_daemon_or_with_the_sorts_of_a_verifier(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await command("top", "--once") == 1
    assert "no edge daemon is running" in capsys.readouterr().err
    assert await command("top", "--once", "--sort", "tenant") == 2
    assert "--sort tenant belongs to --admin" in capsys.readouterr().err


class Enough(Exception):
    """Ends a watch that would go on for ever."""


class Screen(io.StringIO):
    encoding = "utf-8"

    def frames(self) -> list[str]:
        shown = self.getvalue().removeprefix(OTHER_SCREEN).removesuffix(BACK)
        return [re.sub(r"\x1b\[\w", "", frame) for frame in shown.split(HOME)[1:]]


async def test_each_look_takes_the_place_of_the_one_before_and_the_daemon_may_come_back(state: Path) -> None:
    out, looks = Screen(), iter(range(3))

    def watch(most: int) -> None:
        def sleep(interval: float) -> None:
            if next(looks) >= most:
                raise Enough

        daemon_top.redraw(OPTIONS, out, sleep)

    with pytest.raises(Enough):
        await asyncio.to_thread(watch, 0)
    async with daemon(state):
        with pytest.raises(Enough):
            await asyncio.to_thread(watch, 2)
    assert out.getvalue().startswith(OTHER_SCREEN + HOME)
    assert out.getvalue().endswith(BACK)
    first, *others = out.getvalue().split(BACK)[:2]
    assert "no edge daemon is running" in first
    assert all("texts: 0 under way" in each for each in others)
    assert others[0].count(HOME) == 2


async def test_a_pipe_gets_one_look_after_the_other_until_the_daemon_ends(state: Path) -> None:
    out = Screen()

    def sleep(interval: float) -> None:
        if out.getvalue().count("ID") == 2:
            (state / "edge.pid").rename(state / "away")

    async with daemon(state):
        with pytest.raises(UnavailableError, match="no edge daemon is running"):
            await asyncio.to_thread(daemon_top.repeat, OPTIONS, out, sleep)
        (state / "away").rename(state / "edge.pid")
    assert out.getvalue().count("mode: ahead") == 2
