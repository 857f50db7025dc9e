"""Published schemes as growth policies, one file each (docs/schemes.md).

Each keeps its defining idea: how long a block is, what is drafted while a verdict travels, and whether the
verifier goes on alone. Times in seconds.
"""
