"""Helpers of development: the stub generator and the checker of the floors. Never installed."""
