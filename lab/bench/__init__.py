"""Implements `python -m lab bench`, which loads a verifier or the daemon (lab/docs/capacity.md)."""
