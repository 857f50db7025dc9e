"""Drafts of Forerun's edges in SGLang."""
