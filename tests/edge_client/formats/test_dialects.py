"""What all dialects hold: the events of a text do not depend on where its parts were cut."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.formats.anthropic import AnthropicMessages
from edge_client.formats.detokenizer import TextSpan, TokenOrigin
from edge_client.formats.dialect import ChoiceEnd, Dialect, Heading, Json, StopReason, Usage
from edge_client.formats.fields import Fields
from edge_client.formats.message import (
    ArgumentsAdded,
    CallBegun,
    ContentAdded,
    Message,
    MessagePart,
    ReasoningAdded,
)
from edge_client.formats.ollama import OllamaChat
from edge_client.formats.responses import Responses

USAGE = Usage(prompt=9, cached=4, text=7, reasoning=2, accepted=3, rejected=1)
TIMES = {"elapsed_ms": 30.0, "waited_ms": 5.0, "first_token_ms": 10.0}
ENDED = ChoiceEnd(StopReason.CALLS, None, {"mode": "ahead", **TIMES})


def said(text: str) -> ContentAdded:
    return ContentAdded(tuple(TextSpan(letter, TokenOrigin.SERVER) for letter in text or [""]))


def thought(text: str) -> ReasoningAdded:
    return ReasoningAdded(said(text).spans)


def message_of(parts: Sequence[MessagePart]) -> Message:
    found = Message()
    found.add(parts)
    return found


def streamed(
    dialect: Dialect, groups: Sequence[Sequence[MessagePart]], end: ChoiceEnd = ENDED, usage: Usage = USAGE
) -> list[Json]:
    """All chunks of a text whose parts come in these groups."""
    chunks = dialect.first(Usage(prompt=usage.prompt))
    for group in groups:
        chunks += dialect.added(group, {}, 0)
    return [*chunks, *dialect.choice_end(end, 0), *dialect.end(end, usage)]


def joined(parts: Sequence[MessagePart]) -> list[MessagePart]:
    """The same text in fewer parts, as it is read again after a restart."""
    found = list[MessagePart]()
    for part in parts:
        match found[-1] if found else None, part:
            case (ContentAdded() | ReasoningAdded()) as last, (ContentAdded() | ReasoningAdded()) if type(
                last
            ) is type(part):
                found[-1] = type(part)(last.spans + part.spans)
            case ArgumentsAdded() as last, ArgumentsAdded() if last.index == part.index:
                found[-1] = ArgumentsAdded(part.index, last.text + part.text)
            case _:
                found.append(part)
    return found


@st.composite
def messages(draw: st.DrawFn) -> list[MessagePart]:
    """Parts of a message. Calls have their indices, and arguments come within a call only."""
    pieces = st.one_of(
        st.sampled_from(["", " ", "\n", "ab", "c "]).map(said),
        st.sampled_from(["", " ", "hm"]).map(thought),
        st.sampled_from(["shell", "apply_patch", "mcp__files__shell", "unknown"]),
        st.sampled_from(['{"input"', ': "a"}', ""]).map(lambda text: ArgumentsAdded(0, text)),
    )
    found, index = list[MessagePart](), -1
    for piece in draw(st.lists(pieces, max_size=12)):
        match piece:
            case str():
                index += 1
                found.append(CallBegun(index, piece))
            case ArgumentsAdded(text=text):
                if found and isinstance(found[-1], CallBegun | ArgumentsAdded):
                    found.append(ArgumentsAdded(index, text))
            case _:
                found.append(piece)
    return found


def heading(**form: Any) -> Heading:
    return Heading("id_1f", 1_700_000_000, "m", "fp_1", form)


def messages_dialect(max_tokens: int | None = 9) -> AnthropicMessages:
    return AnthropicMessages(heading(max_tokens=max_tokens), None)


def responses(**fields: Any) -> Responses:
    return Responses(heading(**Responses.parse(Fields({"input": "abc", **fields})).form), None)


def ollama() -> OllamaChat:
    return OllamaChat(heading(), None)


@pytest.mark.parametrize("dialect", [messages_dialect, responses, ollama])
@given(parts=messages(), cut=st.integers(0, 12))
def test_events_do_not_depend_on_where_parts_were_cut_or_a_daemon_restarted(
    dialect: Callable[[], Dialect], parts: list[MessagePart], cut: int
) -> None:
    expected = streamed(dialect(), [[each] for each in parts])
    assert streamed(dialect(), [parts[:cut], [], parts[cut:]]) == expected
    again = dialect()
    again.first(USAGE)
    again.added(joined(parts[:cut]), {}, 0)  # was sent
    rest = [*again.added(parts[cut:], {}, 0), *again.choice_end(ENDED, 0), *again.end(ENDED, USAGE)]
    assert expected[len(expected) - len(rest) :] == rest
