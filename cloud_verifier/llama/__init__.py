"""The engine of GGUF targets, on llama.cpp."""
