"""The draft model on the device: its file and weights, its thread and seats, and its texts in llama.cpp
(`common.llama`)."""
