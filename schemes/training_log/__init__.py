"""Texts that a verifier keeps for training, of tenants that agreed: the files, and what fills them."""
