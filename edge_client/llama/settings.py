"""How the draft model is loaded and run. Built once at the command line, checked here, passed down."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import UserError

KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}
"""Name -> ggml_type of a KV cell. q8_0 halves f16's memory; llama.cpp takes it with flash attention only."""

FEWEST_SEQUENCES, MOST_SEQUENCES = 64, 192
OUTPUT_LOGITS = 10_000_000
"""llama.cpp reserves a row of logits for every sequence: 192 rows of 151,936 are 111 MiB. This many logits
(40 MB) are enough: a draft with a large vocabulary is too slow for a wide tree."""

LARGE_CONTEXT, MAX_UBATCH, MIN_UBATCH = 8192, 512, 64
"""Up to this many cells llama.cpp takes its default of 512 tokens at a time. Without flash attention it keeps
a score for each token, cell and head, 1.1 GB at 32,768 cells: so beyond, fewer tokens at a time."""

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ, a constant of llama.cpp's build


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """Raises `UserError` that names the field, its value and what is allowed."""

    path: str  # a local GGUF file, or hf://organisation/repository/file.gguf
    n_ctx: int = 4096  # KV cells in all: prompt, text and the live tree share them; 0 = as trained
    # One for the committed text, the rest for as many leaves of the tree; 0 = 64 to 192, by the vocabulary.
    n_seq_max: int = 0
    n_batch: int = 512  # tokens per llama_decode while prefilling
    max_rows: int = 32  # rows per draft step that ask for logits; sizes llama.cpp's output buffers
    threads: int = 0  # of a single-row step; 0 = one less than processors that this process may use
    threads_batch: int = 0  # of a step with several rows; 0 = as `threads`
    # None: off on the processor, where it made 8 rows over 256 cells five times slower
    # and computes in f16; with layers on an accelerator, or KV in q8_0, llama.cpp decides.
    flash_attention: bool | None = None
    kv_type: str = "f16"  # a key of KV_TYPES
    gpu_layers: int = 0  # layers on the accelerator; -1 = all
    use_extra_bufts: bool | None = None  # weights repacked for the processor; None = unless that would crash
    models: str = ""  # folder of `forerun pull`, where hf:// and https:// names are looked up; empty: none
    sha256: str = ""  # what the file must hash to; empty: anything
    verbose: bool = False  # llama.cpp's own log at its own levels, else all of it at DEBUG

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError(
                "the draft model's path is empty; name a GGUF file or hf://organisation/repo/file.gguf"
            )
        if self.kv_type not in KV_TYPES:
            raise UserError(f"kv_type is {self.kv_type!r}; it must be one of {', '.join(KV_TYPES)}")
        if self.kv_type == "q8_0" and self.flash_attention is False:
            raise UserError("kv_type q8_0 needs flash attention; leave flash_attention unset or use f16")
        _in_range("n_ctx", self.n_ctx, 0, 2**31 - 1)
        if self.n_seq_max != 0:
            _in_range("n_seq_max", self.n_seq_max, 2, MAX_SEQUENCES)
        _in_range("max_rows", self.max_rows, 1, 2**15)
        # Half a batch for rows, half for what they stand on; llama.cpp reserves outputs for n_seq_max rows.
        _in_range("n_batch", self.n_batch, max(2 * self.max_rows, self.n_seq_max), 2**20)
        _in_range("threads", self.threads, 0, 512)
        _in_range("threads_batch", self.threads_batch, 0, 512)
        _in_range("gpu_layers", self.gpu_layers, -1, 2**15)

    def num_sequences(self, num_vocab: int) -> int:
        """Sequences of a context for a model with so many tokens."""
        chosen = min(MOST_SEQUENCES, max(FEWEST_SEQUENCES, OUTPUT_LOGITS // num_vocab))
        return self.n_seq_max or min(chosen, self.n_batch)

    def num_together(self, num_cells: int) -> int:
        """Tokens that llama.cpp computes together in a context of so many cells."""
        fitting = max(MIN_UBATCH, MAX_UBATCH * LARGE_CONTEXT // max(num_cells, LARGE_CONTEXT))
        return min(self.n_batch, fitting)


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UserError(f"{name} is {value}; it must lie in [{low}, {high}]")
