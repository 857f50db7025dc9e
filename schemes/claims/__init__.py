"""Published figures, and the same schemes here in their papers' own settings."""
