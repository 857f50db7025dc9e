"""The command line: write the records, or compare what the code does with them."""

import argparse
import json
import sys
from pathlib import Path

from tests.golden.records import RECORDS, differences

FOLDER = Path(__file__).parent
SHOWN = 20


def main() -> int:
    """0, or 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("--only", action="append", choices=tuple(RECORDS), help="may be repeated")
    options = parser.parse_args()
    different = 0
    for name in options.only or RECORDS:
        path, actual = FOLDER / f"{name}.json", json.loads(json.dumps(RECORDS[name]()))
        if options.action == "record":
            path.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
            continue
        lines = differences(json.loads(path.read_text(encoding="utf-8")), actual, name)
        different += len(lines)
        sys.stdout.write("\n".join(lines[:SHOWN] or [f"{name}: as recorded"]) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
