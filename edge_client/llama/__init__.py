"""The draft model on the device: llama.cpp, driven through the low-level interface of llama-cpp-python."""
