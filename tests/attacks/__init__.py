"""Known attacks, played against real processes with an honest text beside each.

`on_verifier` and `on_daemon` play them. `stages` starts the processes that they meet, `honest` writes the
text beside them, and `test_attacks` judges.
"""
