"""Messages pass through real chat templates unharmed, both ways. `make test` fetches the templates."""

import asyncio
import json
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pytest

from common.vocabulary import Vocabulary
from common.wire.describe import Description
from edge_client.api.endpoints import Defaults, TextEndpoints
from edge_client.formats.call_style import call_style
from edge_client.formats.families import begun_by
from edge_client.formats.fields import Fields
from edge_client.formats.message import MessageForm
from edge_client.formats.openai import ChatCompletion
from edge_client.formats.parsed_request import ChatPrompt
from edge_client.texts.text_service import TextService, TextSettings
from tests.edge_client.formats.call_templates import REAL, Family, family, needs_templates
from tests.edge_client.formats.test_reader import calls_of, read
from tests.edge_client.formats.written_messages import Json

pytestmark = [pytest.mark.api, pytest.mark.slow, needs_templates]

ENDS = re.compile(
    r"(?:<\|(?:im_end|eot_id|return|call|end)\|>|</s>|<turn\|>|<\|tool_response>"
    r"|<end_of_turn>|<｜end▁of▁sentence｜>)\s*\Z"
)
"""The mark that ends a message. Models write it as an end token, which no reader gets."""

THOUGHT, CONTENT, SYSTEM = "They want both.\n\nSo two calls.", "I look now.", "Be brief."
CALLS = [
    ("get_weather", {"city": 'Paris "é" {x}', "days": 3, "exact": True, "at": {"zip": [1, 2]}}),
    ("get_weather", {"city": "Rome"}),
]
RESULTS = ["18 degrees", "noon"]
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "at": {"type": "object", "properties": {"zip": {"type": "string"}}},
            },
        },
    },
}
USER: Json = {"role": "user", "content": "hello there"}
CALLED: Json = {
    "role": "assistant",
    "content": CONTENT,
    "reasoning_content": THOUGHT,
    "tool_calls": [
        {"id": f"call_{at}", "type": "function", "function": {"name": called, "arguments": json.dumps(given)}}
        for at, (called, given) in enumerate(CALLS)
    ],
}
ANSWERED: list[Json] = [
    {"role": "tool", "tool_call_id": f"call_{at}", "content": text} for at, text in enumerate(RESULTS)
]
THINKS: Json = {"enable_thinking": True}


class Spelled:
    """`Words` of bytes and of one family's control tokens."""

    begin_ids: tuple[int, ...] = ()

    def __init__(self, family: Family) -> None:
        self._family = family
        self.control_texts = tuple(family.controls.ids)
        self.num_vocab, self.eos_ids = len(family.pieces), (family.eos,)

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        return self._family.read(text) if parse_special else list(text.encode())

    def piece(self, token: int) -> bytes:
        return self._family.pieces[token]


class Described:
    """A `VerifierChoice` that has described its target and is not asked for more."""

    def __init__(self, description: Description) -> None:
        self.description = description

    def best(self) -> Description:
        return self.description

    def refusal(self) -> None:
        return None

    async def heard(self, patience: float) -> None:
        raise AssertionError("the target is known")

    def route(self, key: str, skill: object, target: str) -> Any:
        raise AssertionError("no text is written")


class Target:
    """A target with a real template, as a daemon knows it."""

    def __init__(self, name: str) -> None:
        self.real = REAL[name]
        self.family = family(name)
        self.words = Spelled(self.family)
        table = Vocabulary(self.family.pieces)
        told = Description(
            name,
            self.words.num_vocab,
            2**20,
            table.fingerprint,
            chat_template=self.family.template.source,
            bos_token="<s>",
            eos_token="</s>",
        )
        texts = TextService(self.words, table, Described(told), None, TextSettings())
        self.endpoints = TextEndpoints(texts, Defaults())

    def prompt(
        self, messages: Sequence[Json], tools: Sequence[Json] = (WEATHER,), **fields: Any
    ) -> tuple[str, MessageForm]:
        """Return the prompt of an OpenAI request as the target gets it, and how the answer is read."""
        asked = ChatCompletion.parse(Fields({"messages": list(messages), "tools": list(tools), **fields}))
        assert isinstance(asked.prompt, ChatPrompt)
        tokens, form = asyncio.run(self.endpoints.prompt(asked.prompt, "messages"))
        return b"".join(map(self.words.piece, tokens)).decode(), form


@pytest.fixture(scope="module", params=REAL)
def target(request: pytest.FixtureRequest) -> Target:
    return Target(request.param)


def begins(form: MessageForm) -> str:
    """Tell what the first text after a prompt is."""
    found = read(form, "Hm.")
    assert (found.text + found.thought, found.calls) == ("Hm.", [])
    return "thought" if found.thought else "content"


def test_a_message_of_a_real_template_is_read_back(target: Target) -> None:
    """Reasoning, content and two calls come back, wherever the text is cut."""
    real = target.real
    assert call_style(target.family.template, target.family.controls).is_own == real.is_own
    prompt, form = target.prompt([USER], chat_template_kwargs=THINKS)
    said = {**CALLED, "tool_calls": CALLED["tool_calls"][: real.num_calls]}
    if real.content in ("apart", "thought"):
        said["content"] = None
    whole, _ = target.prompt([USER, said], chat_template_kwargs={**THINKS, "add_generation_prompt": False})
    pairs = zip(prompt, whole, strict=False)
    begun = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    form = begun_by(form, begun)
    text = ENDS.sub("", whole.removeprefix(begun))
    for pieces in (list(text), [text], target.family.controls.split(text)):
        found = read(form, *pieces)
        assert found.thought == THOUGHT * real.thinks
        assert found.text == CONTENT * (real.content == "beside")
        assert calls_of(found) == CALLS[: real.num_calls]


def test_a_history_reaches_a_real_template_whole(target: Target) -> None:
    """It is in its order, with arguments that are no strings. Earlier calls are not read as new ones."""
    real, system = target.real, {"role": "system", "content": SYSTEM}
    answers = [["Paris", RESULTS[0]], ["Rome", RESULTS[1]]]
    for content in (CONTENT, None):
        told = [system, USER, {**CALLED, "content": content}, *ANSWERED]
        prompt, form = target.prompt(told, chat_template_kwargs=THINKS)
        assert (THOUGHT in prompt) == real.thinks
        assert SYSTEM in prompt
        said = [] if content is None or real.content == "lost" else [CONTENT]
        for texts in (["Paris", "Rome"], *answers, RESULTS, [*said, "Paris"]):
            places = [prompt.find(each, prompt.index(USER["content"])) for each in texts]
            assert min(places) > -1
            assert places == sorted(places)
        assert '\\"city' not in prompt
        begins(form)
    answered: Json = {"role": "assistant", "content": "Sunny."}
    longer = [system, USER, CALLED, *ANSWERED, answered, {"role": "user", "content": "thanks"}]
    prompt, form = target.prompt(longer, chat_template_kwargs=THINKS)
    assert all(each in prompt for each in (SYSTEM, "Paris", "Rome", *RESULTS, "Sunny.", "thanks"))
    begins(form)


def test_the_switches_of_thinking_reach_a_real_template(target: Target) -> None:
    """Wherever the prompt opens a thought, the reader begins in it."""

    def asked(**fields: Any) -> tuple[str, str]:
        prompt, form = target.prompt([USER], (), **fields)
        return prompt, begins(form)

    silent, *others = (
        asked(reasoning_effort="none"),
        asked(reasoning_effort="minimal"),
        asked(chat_template_kwargs={"enable_thinking": False}),
    )
    assert others == [silent, silent]
    assert silent[1] == ("thought" if target.real.opens == "always" else "content")
    thinking = [asked(reasoning_effort=each) for each in ("medium", "high", "xhigh")]
    for each in (*thinking, asked(chat_template_kwargs={"enable_thinking": True})):
        assert (each != silent) == target.real.switches
        assert each[1] == ("content" if target.real.opens == "never" else "thought")
