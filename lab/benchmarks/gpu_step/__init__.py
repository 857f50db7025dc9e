"""Measures the verifier's engine on a GPU: is it right, how near its floor, how many tokens a second.

    python -m lab.benchmarks.gpu_step --out DIR

runs all parts within ten minutes on an H200, prints a table, and writes DIR/gpu_step.json after each part,
so that an interruption loses little. It needs numpy, torch, transformers and triton, and no model: the
target is an 8B Llama with random weights. `--tiny` runs every part that can run on a CPU, in seconds, with
a tiny model.
"""
