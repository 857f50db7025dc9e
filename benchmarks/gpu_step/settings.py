"""What is measured: on a GPU, and in miniature."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama's shape."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Load:
    """A step: so many sessions with so many nodes each, below contexts of so many tokens."""

    sessions: int
    nodes: int
    context: int
    bound: float | None = None  # times the floor that a step may take at most; what the project aims at

    def __str__(self) -> str:
        return f"{self.sessions} x {self.nodes} at {self.context}"


@dataclass(frozen=True, slots=True)
class Settings:
    """One run."""

    shape: ModelShape
    dtype: str  # as torch names it
    check_seeds: int  # random steps for each kind of attention
    check_steps: int  # of a tiny model, by graphs and eagerly
    copied_bytes: int  # of the bandwidth's buffer
    loads: tuple[Load, ...]
    repeats: int  # timed runs of each kind, after `warm_up` others
    warm_up: int
    rate_sessions: tuple[int, ...]
    acceptances: tuple[float, ...]
    prompt_tokens: int
    text_tokens: int
    draft_nodes: int  # that an oracle keeps below the tip
    prefill_chunk: int
    served_prompt: int  # tokens of the prompts that reach a real verifier
    served_tokens: int


FULL = Settings(
    shape=ModelShape(128256, 4096, 14336, 32, 32, 8, 128),
    dtype="bfloat16",
    check_seeds=3,
    check_steps=30,
    copied_bytes=4 << 30,
    loads=(
        Load(1, 1, 2048),
        Load(1, 8, 2048, bound=1.25),
        Load(8, 8, 2048),
        Load(32, 1, 2048),
        Load(32, 8, 2048, bound=1.4),
    ),
    repeats=40,
    warm_up=5,
    rate_sessions=(1, 8, 32, 128),
    acceptances=(0.6, 0.8),
    prompt_tokens=1024,
    text_tokens=160,
    draft_nodes=7,
    prefill_chunk=2048,
    served_prompt=2000,
    served_tokens=64,
)

TINY = Settings(
    shape=ModelShape(64, 32, 48, 1, 2, 1, 16),
    dtype="float32",
    check_seeds=1,
    check_steps=3,
    copied_bytes=4 << 20,
    loads=(Load(1, 2, 9, bound=1.25),),
    repeats=1,
    warm_up=2,
    rate_sessions=(1, 3),
    acceptances=(0.6,),
    prompt_tokens=12,
    text_tokens=10,
    draft_nodes=3,
    prefill_chunk=64,
    served_prompt=300,
    served_tokens=12,
)
