"""Benchmarks, the making of the bundled models, integrations, examples and tools: never installed."""
