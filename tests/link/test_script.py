"""Laws of scripts: what they read, and what they say when they do not."""

import asyncio
import logging

import pytest

from link import Bandwidth, Change, Latency, Link, ScriptError, Stream, Timeout, parse_script, play, rtt
from link import script as script_
from link.script import Action, Cut, Disable, Enable, RemoveToxic, SetToxics


def test_the_example_of_the_docstring_reads() -> None:
    assert script_.__doc__ is not None
    text = script_.__doc__[script_.__doc__.index("[") : script_.__doc__.index("]\n") + 1]
    assert parse_script(text) == (
        Change(0, SetToxics((Latency(80, stream=Stream.UPSTREAM),))),
        Change(10, RemoveToxic("latency_upstream")),
        Change(12, SetToxics(rtt(200, jitter=20))),
        Change(15, Disable()),
        Change(15, Cut()),
        Change(18, Enable()),
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nonsense", "JSON"),
        ("{}", "list"),
        ("[3]", "entry 0"),
        ('[{"do": "cut"}]', "'at'"),
        ('[{"at": -1, "do": "cut"}]', "'at'"),
        ('[{"at": true, "do": "cut"}]', "'at'"),
        ('[{"at": 0, "do": "explode"}]', "explode"),
        ('[{"at": 0, "do": "cut", "rest": true}]', "rest"),
        ('[{"at": 0, "do": "cut", "reset": 1}]', "reset"),
        ('[{"at": 0, "do": "remove"}]', "name"),
        ('[{"at": 0, "do": "rtt"}]', "rtt"),
        ('[{"at": 0, "do": "cut"}, {"at": 0, "do": "set", "toxic": {"type": "x"}}]', "entry 1.*'x'"),
        ('[{"at": 2, "do": "cut"}, {"at": 1, "do": "cut"}]', "entry 1"),
    ],
)
def test_a_script_that_does_not_read_names_the_entry_and_the_field(text: str, word: str) -> None:
    with pytest.raises(ScriptError, match=word):
        parse_script(text)


def test_playing_applies_each_change_in_order(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        link = Link.to("127.0.0.1:1", Timeout())
        changes: list[Action] = [
            RemoveToxic("timeout_downstream"),
            SetToxics((Bandwidth(9),)),
            Disable(),
            Cut(),
            RemoveToxic("x"),
        ]
        await play([Change(0.001 * number, action) for number, action in enumerate(changes)], link)
        assert link.toxics == (Bandwidth(9),)
        assert not link.enabled
        await play([Change(0, Enable())], link)
        assert link.enabled

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    assert "'x'" in caplog.text
