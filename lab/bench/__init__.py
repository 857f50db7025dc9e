"""Implements `python -m lab bench`, which loads a verifier or the daemon (docs/capacity.md)."""
