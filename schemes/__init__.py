"""Published schemes: growth policies by name, and the claims of their papers (docs/schemes.md)."""
