"""A conversation with the running daemon, on a terminal or in a pipe.

asking     what is asked for, as the API's request
parts      what comes of an answer, typed
following  an answer over broken connections and restarts
display    an answer on a terminal, in a pipe, or as JSON
stats      how it went, in words
messages   what a person types: lines, blocks, commands
talk       the conversation itself
commands   what a line that begins with a slash does
"""
