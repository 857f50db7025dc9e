"""The draft model on the device: sessions that share one context of llama.cpp (`common.llama`)."""
