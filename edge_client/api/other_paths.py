"""Advice for paths of other servers' APIs, which this daemon does not serve."""

from __future__ import annotations

UNSUPPORTED = {
    "use /v1/completions": ("/generate", "/generate_stream", "/v1/complete"),
    "use /v1/completions, or /completion as of llama-server": ("/completions",),
    "use /v1/chat/completions; this client adds /v1 to its base URL by itself": ("/v1/v1/chat/completions",),
    "use /v1/messages; this client adds /v1 to its base URL by itself": ("/v1/v1/messages",),
    "use /v1/models and /v1/status": (
        *("/props", "/slots", "/version", "/get_model_info", "/model_info", "/server_info"),
        *("/get_server_info", "/info", "/tokenizer_info", "/load"),
    ),
    "the target only writes texts; set the client's own URL for embeddings": (
        *("/embedding", "/embeddings", "/v1/embeddings", "/api/embed", "/api/embeddings", "/pooling"),
    ),
    "the target only writes texts": (
        *("/rerank", "/reranking", "/v1/rerank", "/v1/reranking", "/v2/rerank", "/score", "/v1/score"),
        *("/classify", "/v1/classify", "/v1/moderations"),
    ),
    "use /v1/responses/input_tokens": ("/responses/input_tokens",),
    "text only": ("/v1/images", "/v1/audio", "/v1/videos", "/v1/realtime"),
    "nothing is stored": ("/v1/files", "/v1/uploads", "/v1/vector_stores", "/v1/containers"),
    "use previous_response_id": ("/v1/conversations", "/v1/threads", "/v1/assistants"),
    "send a shorter conversation": ("/v1/responses/compact",),
    "send single requests; the daemon queues them fairly": ("/v1/batches", "/v1/messages/batches"),
    "this daemon trains no models": ("/v1/fine_tuning", "/v1/evals"),
    "the draft and the target are those of the daemon's start": (
        *("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs"),
        *("/lora-adapters", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/models/load"),
    ),
}
"""Paths, each with all below it, by the words that say what to do."""

_ADVICE = {path: hint for hint, paths in UNSUPPORTED.items() for path in paths}


def advice(path: str) -> str:
    """Return what a client of this path should do; empty for a path that no known server has."""
    parts = path.split("/")
    for length in range(len(parts), 1, -1):
        if hint := _ADVICE.get("/".join(parts[:length])):
            return hint
    return ""
