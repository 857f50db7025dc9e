"""Fits what drafts and policies learn from recorded texts."""
