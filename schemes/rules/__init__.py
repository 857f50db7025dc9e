"""Published acceptance rules, one family a file (docs/acceptance.md). `coupled` alone is in the cores."""
