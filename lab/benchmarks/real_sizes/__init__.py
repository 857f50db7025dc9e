"""Measures Forerun at realistic sizes: a pair of Qwen2.5-0.5B's shape, made on the spot from a seed."""
