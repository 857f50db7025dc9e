"""Published acceptance rules, one family a file (docs/schemes.md). `coupled` alone is in the cores."""
