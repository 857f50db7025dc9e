"""Families of causal language models, each as a tiny one with random weights: what the probe is run on.

What a family does beyond plain attention is as in its published models: which layers slide and how far,
sinks, softcaps, partial and scaled rotary embeddings, layers without any, norms of queries and keys, shared
keys and values, latent attention, experts. Everything else is small. `conformance` probes them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES: Mapping[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 3,
    "pad_token_id": 0,
    # Ten times the usual: attention then moves the residual stream as far as it does in a trained model.
    "initializer_range": 0.2,
}
"""Under the names that most configurations have."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table."""

    name: str  # as people call it
    model_type: str  # as transformers calls it
    trait: str  # what the verifier must get right in it, or what keeps it from being served
    own: Mapping[str, Any] = field(default_factory=dict)  # settings of its configuration beside `SIZES`
    without: tuple[str, ...] = ()  # names of `SIZES` that its configuration does not take

    @property
    def settings(self) -> dict[str, Any]:
        """Of its transformers configuration, all."""
        return {**{name: size for name, size in SIZES.items() if name not in self.without}, **self.own}


FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "factor": 32.0, "original_max_position_embeddings": 4096,
    "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
}  # fmt: skip
_LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "head_dim": 4, "num_key_value_heads": 4,
}  # fmt: skip
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DEEPSEEK = {
    **_LATENT, **_ROUTED, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2,
    "topk_group": 1,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
_THREE_TO_ONE = {
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
    "sliding_window": 4096,
}
_GEMMA3 = {
    "num_hidden_layers": 6,
    "layer_types": [*[SLIDING] * 5, FULL],
    "sliding_window": 1024,
    "query_pre_attn_scalar": 8,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    },
}
_GEMMA3N = {
    "num_hidden_layers": 10, "layer_types": [*[SLIDING] * 4, FULL] * 2, "sliding_window": 512,
    "num_kv_shared_layers": 5, "intermediate_size": [48] * 10, "activation_sparsity_pattern": [0.0] * 10,
    "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8, "laurel_rank": 8,
}  # fmt: skip
_GPT_OSS = {
    **_LOCAL_EXPERTS,
    "sliding_window": 128,
    "layer_types": [SLIDING, FULL],
    "max_position_embeddings": 131072,
}
_GRANITE = {
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
"""Sizes of a gated delta rule."""

MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}  # fmt: skip
"""Sizes of Mamba 2 layers; chunks that are shorter than the probe's."""

_NO_HEAD_DIM = ("head_dim",)
_ALL_HEADS_ALIKE = ("head_dim", "num_key_value_heads")

SERVED_FAMILIES: tuple[Family, ...] = (
    Family(
        "Llama 3", "llama", "rotary frequencies scaled by wavelength",
        {"rope_parameters": _LLAMA3_ROPE, "max_position_embeddings": 131072},
    ),
    Family("Qwen 2, Qwen 2.5", "qwen2", "biases of queries, keys and values", {}),
    Family("Qwen 3", "qwen3", "norms of queries and keys, heads wider than the model", {"head_dim": 16}),
    Family("Mistral 7B", "mistral", "every layer slides", {"sliding_window": 4096}),
    Family(
        "Ministral 3", "ministral3", "YaRN, queries scaled by their position",
        {"max_position_embeddings": 262144},
    ),
    Family("Gemma", "gemma", "one KV head, scaled embeddings", {"num_key_value_heads": 1}),
    Family(
        "Gemma 2", "gemma2", "every other layer slides; softcaps on scores and logits",
        {"sliding_window": 4096, "layer_types": [SLIDING, FULL], "query_pre_attn_scalar": 8},
    ),
    Family(
        "Gemma 3", "gemma3_text", "five of six layers slide, each kind with a rotary embedding of its own",
        _GEMMA3,
    ),
    Family(
        "Gemma 3n", "gemma3n_text", "upper layers use lower layers' keys and values; four of five slide",
        _GEMMA3N,
    ),
    Family("Phi-2", "phi", "rotary embedding on half of each head, parallel residual", {}, _NO_HEAD_DIM),
    Family(
        "Phi-3 mini 4k", "phi3", "every layer slides; fused projections",
        {"sliding_window": 2047}, _NO_HEAD_DIM,
    ),
    Family("gpt-oss", "gpt_oss", "sinks, every other layer slides, YaRN, experts", _GPT_OSS),
    Family("OLMo", "olmo", "norms without weights", {}, _NO_HEAD_DIM),
    Family("OLMo 2", "olmo2", "norms after each block, of queries and of keys", {}, _NO_HEAD_DIM),
    Family("OLMo 3", "olmo3", "three of four layers slide", _THREE_TO_ONE, _NO_HEAD_DIM),
    Family("OLMoE", "olmoe", "experts, norms of queries and keys", _EXPERTS, _NO_HEAD_DIM),
    Family("Granite 3", "granite", "multipliers everywhere", _GRANITE, _NO_HEAD_DIM),
    Family(
        "Granite 3 MoE", "granitemoe", "multipliers everywhere, experts",
        {**_GRANITE, **_LOCAL_EXPERTS}, _NO_HEAD_DIM,
    ),
    Family(
        "SmolLM3", "smollm3", "every fourth layer knows no positions", {"num_hidden_layers": 4}, _NO_HEAD_DIM
    ),
    Family("Mixtral 8x7B", "mixtral", "experts", _LOCAL_EXPERTS),
    Family(
        "Qwen 2 MoE", "qwen2_moe", "experts and a shared one",
        {**_EXPERTS, "shared_expert_intermediate_size": 16}, _NO_HEAD_DIM,
    ),
    Family("Qwen 3 MoE", "qwen3_moe", "experts, norms of queries and keys", _EXPERTS),
    Family("DeepSeek V2", "deepseek_v2", "latent attention, experts in groups", DEEPSEEK),
    Family("DeepSeek V3", "deepseek_v3", "latent attention, experts by sigmoid", DEEPSEEK),
    Family("MiniCPM 3", "minicpm3", "latent attention", _LATENT),
    Family(
        "StarCoder", "gpt_bigcode", "one KV head, learned positions",
        {"max_position_embeddings": 1024}, _ALL_HEADS_ALIKE,
    ),
    Family(
        "StarCoder 2", "starcoder2", "every layer slides; biases", {"sliding_window": 4096}, _NO_HEAD_DIM
    ),
    Family(
        "GPT-NeoX, Pythia", "gpt_neox", "rotary embedding on a quarter of each head, parallel residual",
        {"num_attention_heads": 2}, _ALL_HEADS_ALIKE,
    ),
    Family(
        "GPT-2", "gpt2", "learned positions, fused projections",
        {"max_position_embeddings": 1024}, _ALL_HEADS_ALIKE,
    ),
    Family(
        "OPT", "opt", "learned positions with an offset",
        {"max_position_embeddings": 2048, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2},
        _ALL_HEADS_ALIKE,
    ),
    Family(
        "Cohere Command R", "cohere", "parallel residual, interleaved rotary embedding", {}, _NO_HEAD_DIM
    ),
    Family(
        "Cohere Command R7B", "cohere2", "three of four layers slide, the fourth knows no positions",
        _THREE_TO_ONE,
    ),
    Family(
        "StableLM 2", "stablelm", "rotary embedding on a quarter of each head",
        {"num_attention_heads": 2, "num_key_value_heads": 1}, _NO_HEAD_DIM,
    ),
    Family("Nemotron 4", "nemotron", "rotary embedding on half of each head, squared ReLU"),
    Family("GLM 4", "glm4", "interleaved rotary embedding on half of each head, norms on both sides"),
    Family(
        "GLM 4.5", "glm4_moe", "experts by sigmoid, rotary embedding on half of each head",
        {**DEEPSEEK, "head_dim": 8, "num_key_value_heads": 2},
    ),
    Family("ERNIE 4.5", "ernie4_5", "interleaved rotary embedding"),
    Family("Hunyuan dense", "hunyuan_v1_dense", "norms of queries and keys after their rotation"),
    Family(
        "EXAONE 4", "exaone4", "three of four layers slide, the fourth knows no positions; norms after",
        _THREE_TO_ONE, _NO_HEAD_DIM,
    ),
    Family("Seed-OSS", "seed_oss", "biases of queries, keys and values"),
    Family(
        "Apertus", "apertus", "xIELU, norms of queries and keys, rotary frequencies scaled by wavelength",
        {"rope_parameters": _LLAMA3_ROPE, "max_position_embeddings": 131072}, _NO_HEAD_DIM,
    ),
    Family("MiniMax M2", "minimax_m2", "experts, norms over all heads at once", _LOCAL_EXPERTS),
    Family(
        "Gemma 4", "gemma4_text", "five of six layers slide, the sixth has larger heads; experts",
        {
            "num_hidden_layers": 6, "sliding_window": 512, "global_head_dim": 16, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
            "moe_intermediate_size": 16, "hidden_size_per_layer_input": 0,
        },
    ),
    Family(
        "Gemma 4 E", "gemma4_text", "upper layers use lower layers' keys and values",
        {
            "num_hidden_layers": 12, "sliding_window": 512, "global_head_dim": 16, "num_kv_shared_layers": 6,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97, "initializer_range": 0.1,
        },
    ),
    Family("Phi-3.5 MoE", "phimoe", "experts", _LOCAL_EXPERTS, _NO_HEAD_DIM),
    Family("ERNIE 4.5 MoE", "ernie4_5_moe", "experts and shared ones", {"moe_num_experts": 8, "moe_k": 2}),
    Family("Hunyuan MoE", "hunyuan_v1_moe", "experts, norms of queries and keys", {"num_experts": 8}),
    Family("GLM 4.7 Flash", "glm4_moe_lite", "latent attention, experts", DEEPSEEK),
    Family("LongCat Flash", "longcat_flash", "latent attention, experts", DEEPSEEK),
    Family(
        "dots.llm1", "dots1", "experts by sigmoid",
        {**DEEPSEEK, "head_dim": 8, "num_key_value_heads": 2},
    ),
    Family(
        "Trinity (AFMoE)", "afmoe", "gated attention, experts; three of four layers slide",
        {**_EXPERTS, **_THREE_TO_ONE},
    ),
    Family("EXAONE MoE", "exaone_moe", "experts, three of four layers slide", {**_EXPERTS, **_THREE_TO_ONE}),
    Family(
        "MiMo V2 Flash", "mimo_v2_flash", "sinks in sliding layers, keys longer than values, experts",
        _ROUTED,
    ),
    Family(
        "Solar Open", "solar_open", "experts by sigmoid",
        _ROUTED,
    ),
    Family(
        "Command A MoE", "cohere2_moe", "experts, three of four layers slide", {**_EXPERTS, **_THREE_TO_ONE}
    ),
    Family("Arcee", "arcee", "squared ReLU"),
    Family("Helium", "helium", "interleaved rotary embedding"),
    Family("InternLM 3", "internlm3", "biases of queries, keys and values"),
    Family("BitNet", "bitnet", "norms within blocks, squared ReLU"),
    Family("LFM 2", "lfm2", "short convolutions among attention", {"layer_types": ["conv", FULL]}),
    Family(
        "LFM 2 MoE", "lfm2_moe", "short convolutions among attention, experts",
        {**_EXPERTS, "layer_types": ["conv", FULL], "num_dense_layers": 1}, _NO_HEAD_DIM,
    ),
    Family("LFM 3", "lfm3", "short convolutions among attention", {"layer_types": ["conv", FULL]}),
    Family(
        "Qwen 3 Next", "qwen3_next", "a gated delta rule in three of four layers, experts",
        {**DELTA, **_EXPERTS, "num_hidden_layers": 4, "shared_expert_intermediate_size": 16},
    ),
    Family(
        "Qwen 3.5", "qwen3_5_text", "a gated delta rule in three of four layers",
        {**DELTA, "num_hidden_layers": 4, "initializer_range": 0.1},
    ),
    Family(
        "Qwen 3.5 MoE", "qwen3_5_moe_text", "a gated delta rule in three of four layers, experts",
        {**DELTA, **_EXPERTS, "num_hidden_layers": 4, "shared_expert_intermediate_size": 16},
    ),
    Family(
        "OLMo Hybrid", "olmo_hybrid", "a gated delta rule in three of four layers",
        {**DELTA, "num_hidden_layers": 4, "layer_types": [*[LINEAR] * 3, FULL]},
    ),
    Family(
        "Kimi Linear", "kimi_linear", "gated delta rule, latent attention, experts",
        {
            **_LATENT, "num_hidden_layers": 4, "layer_types": [*[LINEAR] * 3, FULL],
            "linear_head_dim": 8, "linear_num_heads": 4,
            "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        },
    ),
    Family(
        "Ling 3 Flash", "bailing_hybrid", "gated delta rule, latent attention, experts",
        {**DEEPSEEK, "num_hidden_layers": 4, "layer_group_size": 4},
    ),
    Family(
        "Granite 4 hybrid", "granitemoehybrid", "Mamba 2 layers among attention, experts",
        {**MAMBA, "layer_types": ["mamba", "attention"]},
    ),
    Family(
        "Bamba", "bamba", "Mamba 2 layers among attention",
        {**MAMBA, "attn_layer_indices": [1]}, _NO_HEAD_DIM,
    ),
    Family("Falcon-H1", "falcon_h1", "Mamba 2 and attention in every layer", {**MAMBA, "mamba_d_ssm": 64}),
    Family(
        "Nemotron-H", "nemotron_h", "layers of Mamba 2, of attention, of experts and of an MLP",
        {
            "num_hidden_layers": 4, "layer_types": ["mamba", "moe", "attention", "mlp"],
            "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 1, "chunk_size": 16,
            **_ROUTED,
            "moe_shared_expert_intermediate_size": 16,
            "initializer_range": 0.1,  # squared ReLUs double the exponent of what rounding moves
        },
    ),
    Family(
        "Jamba", "jamba", "Mamba layers among attention, experts",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}, _NO_HEAD_DIM,
    ),
    Family("Mamba", "mamba", "a state in place of keys and values", {}, _NO_HEAD_DIM),
    Family("Falcon Mamba", "falcon_mamba", "a state in place of keys and values"),
    Family(
        "Mamba 2", "mamba2", "a state in place of keys and values",
        {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16},
    ),
)  # fmt: skip
"""Those that the probe lets pass."""

REFUSED_FAMILIES: tuple[Family, ...] = (
    Family(
        "Llama 4", "llama4_text", "layers that see chunks of 8,192 positions",
        {"num_hidden_layers": 4, "intermediate_size_mlp": 48, "num_local_experts": 2},
    ),
    Family(
        "Phi-3 128k", "phi3", "rotary frequencies by the longest session of a batch",
        {"rope_parameters": _LONGROPE, "max_position_embeddings": 131072}, _NO_HEAD_DIM,
    ),
    Family("RWKV 4", "rwkv", "a state in place of keys and values", {"attention_hidden_size": 32}),
    Family("RecurrentGemma", "recurrent_gemma", "recurrent layers among attention", {"num_hidden_layers": 3}),
    Family("MiniMax Text 01", "minimax", "linear attention in every other layer"),
    Family(
        "Zamba 2", "zamba2", "one attention layer that several layers share",
        {
            "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2,
            "layer_types": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 8,
            "mamba_headdim": 8, "mamba_ngroups": 1, "chunk_size": 16,
        },
    ),
    Family("Zaya", "zaya", "convolutions of queries and keys within attention", {"num_hidden_layers": 4}),
    Family("Inkling", "inkling_text", "convolutions of keys and values", {"num_hidden_layers": 4}),
    Family("xLSTM", "xlstm", "a state in place of keys and values"),
    Family("GLM 5", "glm_moe_dsa", "keys chosen by an index"),
    Family(
        "Qwen 4 Exp", "qwen4_exp_text", "keys chosen by an index, a gated delta rule",
        {"num_hidden_layers": 4, **DELTA},
    ),
    Family(
        "MiniMax M3", "minimax_m3_vl_text", "keys chosen by an index, experts",
        {**_LOCAL_EXPERTS, "layer_types": [FULL, "minimax_m3_sparse"]},
    ),
    Family("DeepSeek V4", "deepseek_v4", "keys of several tokens compressed into one"),
    Family("DeepSeek V3.2", "deepseek_v32", "keys chosen by an index", DEEPSEEK),
    Family("DiffLlama", "diffllama", "the difference of two attentions"),
    Family("Doge", "doge", "masks of its own making"),
    Family("BLOOM", "bloom", "ALiBi", {}, _NO_HEAD_DIM),
    Family("MPT", "mpt", "ALiBi", {}, _NO_HEAD_DIM),
    Family("Falcon", "falcon", "attention code of an older kind", {}, _NO_HEAD_DIM),
    Family("GPT-J", "gptj", "attention code of an older kind", {"rotary_dim": 4}, _NO_HEAD_DIM),
    Family("CodeGen", "codegen", "attention code of an older kind", {"rotary_dim": 4}, _NO_HEAD_DIM),
    Family(
        "XGLM", "xglm", "attention code of an older kind",
        {"attention_heads": 4, "ffn_dim": 48}, _NO_HEAD_DIM,
    ),
    Family("T5", "t5", "an encoder beside the decoder", {}, _NO_HEAD_DIM),
)  # fmt: skip
"""Those that are not served, each for its own reason."""
