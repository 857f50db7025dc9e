"""Published drafters, found by name: sources of proposals, and groups of draft models."""
