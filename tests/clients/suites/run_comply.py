# /// script
# requires-python = ">=3.11"
# dependencies = ["llm-comply==0.5.0"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""The command `llm-comply`, in an environment of its own."""

import sys

from llm_comply.cli import main

sys.exit(main())
