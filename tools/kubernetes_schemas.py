"""A part of tools/deploy_check.py that runs where kubernetes-validate is installed.

Objects come as JSON on standard input; what the schemas of every version from argv[1] on say of them leaves
as JSON on standard output.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import import_module
from typing import Any


def main() -> int:
    utils: Any = import_module("kubernetes_validate.utils")
    utils.schema_contents = cache(utils.schema_contents)  # it reads megabytes for every object otherwise
    oldest = [int(each) for each in sys.argv[1].split(".")]
    objects = json.load(sys.stdin)
    versions = [
        each for each in dict.fromkeys(utils.all_versions()) if [*map(int, each.split("."))][:2] >= oldest
    ]
    checked, errors, unknown = 0, [], set()
    for version in versions:
        for each in objects:
            try:
                utils.validate(each, version, strict=True)
                checked += 1
            except utils.SchemaNotFoundError:
                unknown.add(f"{each['kind']} ({each['apiVersion']})")
            except utils.ValidationError as error:
                errors.append(f"{version} {each['kind']}/{each['metadata']['name']}: {error.message}")
    told = {"versions": versions, "checked": checked, "errors": errors, "without_schema": sorted(unknown)}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
