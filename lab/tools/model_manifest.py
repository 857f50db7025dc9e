"""The manifest of a target model, for the job that fills a volume in a cluster:

    python -m lab.tools.model_manifest FOLDER --from https://HOST/PATH > manifest.json

Made once, of a folder that you trust: from then on the hashes say what the model is, wherever its files come
from. What is taken and what is refused is the job's to say (`fetch_model.py` of the Kustomize component
`model`, which travels to the cluster alone and is used here as it is).
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.parse
from dataclasses import asdict
from pathlib import Path

from deploy.kubernetes.components.model.fetch_model import (
    TAKEN,
    Manifest,
    ModelError,
    Wanted,
    check_format,
    check_names,
    hash_of,
)


def manifest_of(folder: Path, base: str) -> Manifest:
    """Return the manifest of the files of a folder that would be taken, as they would be found below `base`.

    Raises `ModelError` for what the job would refuse when it has come.
    """
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.suffix in TAKEN)
    names = [path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)]
    files = [_wanted(folder / name, name, base.rstrip("/")) for name in names]
    check_names(folder, names)
    return Manifest(tuple(files))


def _wanted(path: Path, name: str, base: str) -> Wanted:
    url = f"{base}/{urllib.parse.quote(name)}"
    wanted = Wanted(name, url, hash_of(path), path.stat().st_size)
    check_format(name, path)
    return wanted


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.tools.model_manifest", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="base", required=True, metavar="URL", help="where the files will be")
    options = parser.parse_args(arguments)
    try:
        made = manifest_of(options.folder, options.base)
    except (ModelError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(made), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
