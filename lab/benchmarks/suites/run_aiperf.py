# /// script
# requires-python = ">=3.11"
# dependencies = ["aiperf==0.13.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""The command `aiperf`, in an environment of its own."""

from aiperf.cli import app

if __name__ == "__main__":
    app()
