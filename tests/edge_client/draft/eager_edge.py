"""Runs the daemon with canaries that decide after some texts, in a process of its own."""

import sys

from edge_client.draft import canary, updated_draft
from forerun.cli import main

if __name__ == "__main__":
    canary.SHARE, canary.ERROR = 0.5, 0.3
    updated_draft.LEAST, updated_draft.LOOK_EVERY = 4, 0.2
    sys.exit(main())
