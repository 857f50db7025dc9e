"""Faults by the hundred over real processes, and every text compared with the one without faults.

Run `python -m benchmarks.faults --faults 1000 --seed 1 --json`. The parts: `draws` (what is asked and what
breaks, by seed), `reading` (a stream as its client pieced it together), `clients`, `stage` (the processes),
`recovery` (how long texts stood still), `run` (all of them together), `outages` (a frozen verifier and no
verifier at all, ten times each).
"""
