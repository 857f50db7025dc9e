"""A daemon whose target writes given texts, for clients that a tiny model cannot please.

Everything but the model is real: daemon, verifier, wire, chat template. A token is a byte. What the target
writes is a function of the rendered prompt, so requests may come at once and in any order.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloud_verifier.core.engine_protocol import Chat, StepItem, StepPlan, StepResult, TargetEngine, TargetInfo
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from cloud_verifier.server.grpc_server import Server
from cloud_verifier.server.worker import Worker
from common.messages import Open
from common.vocabulary import Vocabulary
from edge_client.api.app import Api, ApiSettings
from edge_client.api.endpoints import Defaults, TextEndpoints
from edge_client.api.listening import Listening
from edge_client.api.pairs import Pairs
from edge_client.api.security import Gate
from edge_client.network.channel import VerifierChannel
from edge_client.texts.text_service import TextService, TextSettings
from tests.edge_client.api.served import TOKEN
from tests.edge_client.api.world import OneVerifier, Seats

Script = Callable[[str], str]
"""Returns the answer to a rendered chat."""

MODEL = "scripted"
BEGIN, END = "<|im_start|>", "<|im_end|>"
CONTROLS = {BEGIN: 256, END: 257}
ANSWER = "assistant\n"
"""What follows the last `BEGIN` before the answer."""

TABLE = (*(bytes([byte]) for byte in range(256)), *(text.encode() for text in CONTROLS))
NUM_SLOTS = 2**18
"""Slots and positions: the prompts of coding agents have 100,000 bytes."""

TEMPLATE = """\
{%- for message in messages[1:] if message.role == 'system' %}{{ raise_exception('it must be first') }}
{%- endfor %}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
<|im_start|>assistant{{ "\\n" }}"""
"""A chat template in the manner of Qwen and Hermes. As Qwen 3.5's, it refuses a later system message."""

CONTENT = "{{ message.content or '' }}"
THOUGHT = "<think>\n{{ message.reasoning_content }}\n</think>{{ '\n\n' }}"
THINKING = TEMPLATE.replace(CONTENT, f"{{% if message.reasoning_content %}}{THOUGHT}{{% endif %}}{CONTENT}")
"""Shows the reasoning of earlier messages, too."""


class Bytes:
    """`Words` of the scripted target."""

    num_vocab = len(TABLE)
    eos_ids = (CONTROLS[END],)
    begin_ids: tuple[int, ...] = ()
    control_texts = tuple(CONTROLS)

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        parts = re.split("|".join(map(re.escape, CONTROLS)).join("()"), text) if parse_special else [text]
        return [
            token for part in parts for token in ([CONTROLS[part]] if part in CONTROLS else part.encode())
        ]

    def piece(self, token: int) -> bytes:
        return TABLE[token]


@dataclass
class ScriptedTarget(TargetEngine):
    """An engine that keeps nothing but the tokens of its slots."""

    info: TargetInfo
    script: Script

    def __post_init__(self) -> None:
        self._kept = np.zeros(self.info.num_slots, np.int32)

    def check_grammar(self, request: Open) -> None:
        """Any is accepted: what the script writes is the test's own responsibility."""

    def evaluate(self, plan: StepPlan) -> StepResult:
        choices = tuple(self._choices(item) for item in plan.items)
        return StepResult(choices, tuple(np.ones(len(each), np.float32) for each in choices))

    def _choices(self, item: StepItem) -> NDArray[np.int32]:
        self._kept[item.slots] = item.tokens
        prefix = self._kept[item.prefix_slots]
        return np.array(
            [self._next(prefix, self._path(item, row)) for row in item.outputs.tolist()], np.int32
        )

    def _path(self, item: StepItem, row: int) -> list[int]:
        path = list[int]()
        while row >= 0:
            path.append(int(item.tokens[row]))
            row = int(item.parents[row])
        return path[::-1]

    def _next(self, prefix: NDArray[np.int32], path: list[int]) -> int:
        tokens = np.concatenate([prefix, np.array(path, np.int32)])
        begins = np.flatnonzero(tokens == CONTROLS[BEGIN])
        assert len(begins), "the scripted target answers chats only"
        start = int(begins[-1]) + 1 + len(ANSWER)
        told = b"".join(TABLE[token] for token in tokens[:start].tolist()).decode()
        answer, written = self.script(told).encode(), len(tokens) - start
        return answer[written] if written < len(answer) else CONTROLS[END]


@contextlib.asynccontextmanager
async def scripted(script: Script, template: str = TEMPLATE, model: str = MODEL) -> AsyncIterator[str]:
    """Serve a daemon until the block ends. Yields HOST:PORT; its token is `TOKEN`."""
    vocabulary = Vocabulary(TABLE)
    info = TargetInfo(
        model,
        len(TABLE),
        NUM_SLOTS,
        NUM_SLOTS,
        Bytes.eos_ids,
        vocabulary.fingerprint,
        chat=Chat(template),
        grammars=True,
    )
    worker = Worker(ScriptedTarget(info, script), VerifyScheduler(info, SchedulerConfig(prefill_chunk=8192)))
    async with (
        Server(worker, info, TABLE, "127.0.0.1:0") as server,
        VerifierChannel(f"127.0.0.1:{server.port}") as channel,
    ):
        description = await channel.describe(include_chat_template=True)
        texts = TextService(
            Bytes(), vocabulary, OneVerifier(channel, description), Seats(most=0), TextSettings()
        )
        api = Api(
            Pairs(TextEndpoints(texts, Defaults())),
            ApiSettings(Gate(token=TOKEN)),
            status=lambda: {"mode": "server-only"},
            ready=lambda: "",
        )
        async with Listening(api.app, "127.0.0.1:0") as listening:
            yield listening.address
        await api.streams.close()
    worker.scheduler.check_integrity()


def newest(prompt: str) -> str:
    """Return the newest message, from its role on."""
    return prompt.rpartition(END)[0].rpartition(BEGIN)[2]
