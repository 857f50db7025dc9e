"""The pair's one tokenizer: byte-level BPE whose pre-tokenizer llama.cpp knows as `qwen2`.

llama.cpp has no generic pre-tokenizer, only named ones compiled in (`src/llama-vocab.cpp`); a BPE that splits
differently from its named rule gives other tokens on the edge than in the cloud. So: the published Qwen-2
expression, letter for letter, no normaliser (llama.cpp has none), no prefix space, the whole byte alphabet.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE: Final = 3072
END_OF_TEXT: Final = "<|endoftext|>"
LLAMA_CPP_PRE: Final = "qwen2"
"""Value of `tokenizer.ggml.pre` that names the same split in llama.cpp."""

QWEN2_SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


CHAT_TEMPLATE: Final = """\
{#- For a model that writes Python and nothing else. A request in words is a comment, as before the functions
    of the training text. Code of a user goes on where it ends. What the model wrote stands where it wrote it,
    and what others say is a comment. -#}
{%- for message in messages %}
    {%- set content = message['content'] or '' %}
    {%- if message['role'] == 'assistant' %}
        {{- content }}
    {%- else %}
        {%- if not loop.first %}
            {{- '\\n' }}
        {%- endif %}
        {%- if loop.previtem is defined and loop.previtem['role'] == 'assistant' %}
            {{- '\\n' if (loop.previtem['content'] or '').endswith('\\n') else '\\n\\n' }}
        {%- endif %}
        {%- set code = content.startswith(('def ', 'class ', 'import ', 'from ', '#', '@', ' '))
            or '=' in content or '(' in content or '\\n' in content or ' ' not in content %}
        {%- if message['role'] != 'user' %}
            {{- '# ' ~ content | replace('\\n', '\\n# ') }}
        {%- elif code %}
            {{- content }}
        {%- else %}
            {{- '# ' ~ content ~ '\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
"""
"""Nothing of it is a token or a word that the model has never seen."""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train the BPE on `texts`; `END_OF_TEXT` takes id 0, then come the 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path, context_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `directory`, where
    `AutoTokenizer` reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load tokenizer.json from `directory`."""
    return Tokenizer.from_file(str(directory / "tokenizer.json"))
