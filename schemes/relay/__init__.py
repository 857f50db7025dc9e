"""A middle tier: a verifier near the edge whose own target is remote (docs/schemes.md)."""
