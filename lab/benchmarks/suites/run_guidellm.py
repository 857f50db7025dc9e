# /// script
# requires-python = ">=3.11"
# dependencies = ["guidellm==0.8.1"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# override-dependencies = ["torch; sys_platform == 'never'"]
# ///
"""The command `guidellm`, in an environment of its own. Its reader of data needs torch, a gigabyte: the first
argument names the folder that has it."""

import sys

sys.path.append(sys.argv.pop(1))

from guidellm.__main__ import cli

if __name__ == "__main__":
    cli()
