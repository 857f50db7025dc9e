"""Everything that a hostile or broken client can send, and what must hold whatever it was.

`garbled`, `meaningless` and `mutated` make cases, `wire` plays them to a live server over a socket, and
`laws` says what an answer may be. `bodies` is for the daemon's API, `model_files` for files.
"""
