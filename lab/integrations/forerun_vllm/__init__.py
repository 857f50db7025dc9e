"""Drafts of Forerun's edges in vLLM."""
