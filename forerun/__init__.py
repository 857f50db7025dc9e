"""Implements the command line of Forerun, and gives its parts their public names.

An installed Forerun is one package, with `forerun.common`, `forerun.edge_client` and so on.
In a clone these are the folders beside this one, and their modules answer to both names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

PARTS = ("common", "edge_client", "cloud_verifier", "simulator", "schemes", "training")
"""Folders of a clone that lie below this one in a wheel."""


class _FoldersBeside(MetaPathFinder, Loader):
    """Finds `forerun.common` of a clone: the module `common` itself."""

    def __init__(self) -> None:
        self._own: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        return ModuleSpec(fullname, self) if top == "forerun" and rest.split(".")[0] in PARTS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.name.partition(".")[2])
        self._own[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: the import has set the public name's specification."""
        if module.__spec__ is not None:
            module.__spec__ = self._own.pop(module.__spec__.name)


if not Path(__file__).with_name(PARTS[0]).is_dir():  # a clone
    sys.meta_path.insert(0, _FoldersBeside())
