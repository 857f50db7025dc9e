"""Published drafters, found by name: sources of proposals, groups of draft models, heads on a target."""
