"""A published model through everything: a verifier and a daemon as processes, the model drafting for itself.

llama.cpp alone, driven token by token, says what each text must be.
"""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from common.sampling import SamplingParams
from lab.rig import own_places
from tests.conftest import REAL_MODELS, SMOLLM2
from tests.edge_client.test_daemon import PATIENCE, SCHEMA, Daemon, Process, ready, start
from tests.real.models import Alone
from tests.support.ports import free_port

pytestmark = [
    *(pytest.mark.real, pytest.mark.llama, pytest.mark.api, pytest.mark.sdk),
    *(pytest.mark.grpc, pytest.mark.grammar, pytest.mark.slow),
]

MODEL = str(REAL_MODELS / SMOLLM2)
CHAT = "/v1/chat/completions"
QUESTION = "Name three fruits."
QUESTIONS = [f"Count from {first} to {first + 9}." for first in range(8)]
UNDRAFTED = {"forerun": {"speculate": False, "recall": False}}


@dataclass
class Stack:
    """A daemon and its verifier."""

    address: str  # the verifier's
    verifier: Process
    daemon: Daemon

    def post(self, path: str = CHAT, **fields: Any) -> Any:
        import httpx

        response = httpx.post(**self.request(path, fields), timeout=PATIENCE)
        assert response.status_code == 200, response.text
        return response.json()

    def request(self, path: str, fields: dict[str, Any]) -> dict[str, Any]:
        url, headers = f"http://{self.daemon.address}{path}", {"authorization": f"Bearer {self.daemon.token}"}
        return {"url": url, "headers": headers, "json": {"model": "default", **fields}}

    def chat(self, *contents: str, **fields: Any) -> Any:
        """Return the answer to a conversation, whose turns alternate."""
        asked = {"max_tokens": 24, "temperature": 0, "seed": 1, "messages": _messages(contents), **fields}
        return self.post(**asked)


def _messages(contents: tuple[str, ...]) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(contents)]


def begin_verifier(address: str) -> Process:
    own = ("--model", MODEL, "--listen", address, "--slots", "2048", "--threads", "1")
    return start("verify", *own)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root, address = tmp_path_factory.mktemp("real"), f"127.0.0.1:{free_port()}"
    places = own_places(root)
    verifier = begin_verifier(address)
    running = Stack(address, verifier, ready("--verifier", address, "--draft", MODEL, **places))
    yield running
    assert running.daemon.process.end() == 0
    assert running.verifier.end() == 0


def prompt_of(alone: Alone, *contents: str) -> list[int]:
    """Return the tokens of a conversation, by the file's own template."""
    import jinja2

    template = jinja2.Template(alone.runtime.chat_template)
    text = template.render(messages=_messages(contents), add_generation_prompt=True)
    return alone.runtime.tokenize(text, True)


def greedy(alone: Alone, *contents: str, max_tokens: int = 24, ignore_eos: bool = False) -> str:
    """Return what llama.cpp alone answers."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    tokens, ends = alone.text(prompt_of(alone, *contents), sampling), alone.runtime.eos_ids
    shown = (token for token in tokens if ignore_eos or token not in ends)
    return b"".join(map(alone.runtime.piece, shown)).decode()


def text_of(answer: Any) -> str:
    content: str = answer["choices"][0]["message"]["content"]
    return content


def test_a_chat_is_llama_cpps_own_drafted_and_undrafted(stack: Stack, alone: Alone) -> None:
    wanted = greedy(alone, QUESTION, max_tokens=40, ignore_eos=True)
    asked: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
    undrafted = stack.chat(QUESTION, **asked, **UNDRAFTED)
    assert text_of(undrafted) == wanted
    assert undrafted["forerun"]["accepted"] == 0
    assert undrafted["usage"]["prompt_tokens"] == len(prompt_of(alone, QUESTION))
    for _ in range(20):  # the draft model may still be loading
        drafted = stack.chat(QUESTION, **asked, forerun={"policy": "chain"})
        assert text_of(drafted) == wanted
        if drafted["forerun"]["accepted"]:
            return
    pytest.fail("no draft was accepted")


def test_a_json_schema_is_held_to(stack: Stack) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    asked = {"response_format": form, "max_tokens": 60, "presence_penalty": 1.0}
    drafted, undrafted = (stack.chat("Describe a person.", **asked, **more) for more in ({}, UNDRAFTED))
    assert set(json.loads(text_of(drafted))) == {"name", "age"}
    assert text_of(drafted) == text_of(undrafted)


def test_log_probabilities_are_of_the_logits(stack: Stack, alone: Alone) -> None:
    shown = stack.chat(QUESTION, max_tokens=8, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"][
        "content"
    ]
    steps = list(alone.steps(prompt_of(alone, QUESTION), SamplingParams(max_tokens=8)))
    assert len(shown) == len(steps) == 8
    for entry, (token, logits) in zip(shown, steps, strict=True):
        exact = logits.astype(np.float64)
        exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
        best = np.argsort(-exact)[:3]
        assert bytes(entry["bytes"]) == alone.runtime.piece(token)
        assert entry["logprob"] == pytest.approx(exact[token], abs=1e-4)
        assert [each["logprob"] for each in entry["top_logprobs"]] == pytest.approx(exact[best], abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_eight_texts_at_once_are_those_of_each_alone(stack: Stack, alone: Alone, temperature: float) -> None:
    def ask(place: int) -> str:
        return text_of(stack.chat(QUESTIONS[place], temperature=temperature, seed=place, max_tokens=10))

    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(ask, range(len(QUESTIONS))))
    assert together == [ask(place) for place in range(len(QUESTIONS))]
    if not temperature:
        assert together == [greedy(alone, question, max_tokens=10) for question in QUESTIONS]


def test_a_second_turn_continues_from_the_cache(stack: Stack, alone: Alone) -> None:
    first = "What is the tide?"
    answer = stack.chat(first)
    second = stack.chat(first, text_of(answer), "And why?")
    assert text_of(second) == greedy(alone, first, text_of(answer), "And why?")
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert answer["usage"]["prompt_tokens"] <= cached < second["usage"]["prompt_tokens"]


LONG: dict[str, Any] = {"max_tokens": 80, "temperature": 0, "seed": 1, "stream": True, "ignore_eos": True}


def long_text(alone: Alone) -> str:
    return greedy(alone, QUESTION, max_tokens=LONG["max_tokens"], ignore_eos=True)


def streamed(frames: bytes) -> str:
    """Return the text of a stream of chat chunks."""
    events = [line[6:] for line in frames.decode().splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_a_text_goes_on_after_its_verifier_was_killed(stack: Stack, alone: Alone) -> None:
    import httpx

    request, frames = stack.request(CHAT, {**LONG, "messages": _messages((QUESTION,))}), b""
    with httpx.stream("POST", **request, timeout=PATIENCE) as stream:
        for chunk in stream.iter_raw():
            if not frames:
                stack.verifier.process.send_signal(signal.SIGKILL)
                assert stack.verifier.wait() == -signal.SIGKILL
                stack.verifier = begin_verifier(stack.address)
            frames += chunk
    assert streamed(frames) == long_text(alone)
