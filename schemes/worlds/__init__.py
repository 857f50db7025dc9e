"""Worlds of published papers: associations with verifiers, and hierarchies of models."""
