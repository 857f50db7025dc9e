"""Both real machines joined in memory, in virtual time, with models small enough to check by hand."""
