"""Implements `python -m lab demo`: a verifier, a distant link and an edge on one machine."""
