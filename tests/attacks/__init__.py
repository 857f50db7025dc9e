"""Known attacks, played against real processes with an honest text beside each: `python -m tests.attacks`.

`table` names the attacks and what must hold. `on_verifier`, `on_daemon` and `on_files` play them. `stages`
starts the processes that they meet, `honest` writes the text beside them, and `run` judges.
"""
