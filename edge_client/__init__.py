"""The device side: a draft model that runs ahead of the network, and the session that keeps it honest."""
