"""llama.cpp on both sides: GGUF files, their tokens, and contexts, by llama-cpp-python's lower interface."""
