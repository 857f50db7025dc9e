"""Holds the parts: `draws` (requests and faults by seed), `stage` (the processes), `run`."""
