"""Configure a program by a schema, from which its files, variables, flags and pages follow.

setting  one setting: default, meaning, unit, bounds; the schema of all; a value's way from and to a text
merge    layers of values on each other, with the place that each came from: a file's line, a variable, a flag
command_line  the settings as options of a command
pages    the settings as a commented file and as a reference page
"""
