"""Where a draft model's file is: as named, in the store of `forerun pull`, or in the hub's own cache."""

from __future__ import annotations

from pathlib import Path

from common.errors import UserError
from edge_client.model_name import HUB_PREFIX, is_remote, split_hub_path
from edge_client.model_store import GGUF_MAGIC, ModelStore, check_magic, hash_of


def find_model(path: str, models: str = "", sha256: str = "") -> str:
    """The local file of `path`; of a remote name what was fetched before, as nothing is fetched here.

    Args: models, the folder of the store, empty if there is none; sha256, what it must hash to, empty for
    anything. Raises `UserError` if there is no such file, it does not begin as a GGUF file, or differs.
    """
    local = _fetched(path, models) if is_remote(path) else Path(path).expanduser()
    if not local.is_file():
        raise UserError(
            f"there is no draft model at {local}; check the path, or use {HUB_PREFIX}org/repo/file.gguf"
        )
    try:
        with local.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise UserError(f"the draft model {local} cannot be read ({error}); check its permissions") from error
    check_magic(str(local), magic)
    if sha256 and (found := hash_of(local, lambda done, total: None)) != sha256.lower():
        raise UserError(f"the draft model {local} has the SHA-256 {found}, not {sha256}; it is not loaded")
    return str(local)


def _fetched(name: str, models: str) -> Path:
    """Raises `UserError` that says how to fetch it."""
    stored = ModelStore(Path(models)).find(name) if models else None
    found = stored or _in_hub_cache(name)
    if found is None:
        raise UserError(f"{name} is not on this machine; fetch it with: forerun pull {name}")
    return found


def _in_hub_cache(name: str) -> Path | None:
    """What huggingface_hub has fetched before, if it is installed. Raises `UserError` for no name of it."""
    if not name.startswith(HUB_PREFIX):
        return None
    path = split_hub_path(name)
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(path.repository, path.file, revision=path.revision)
    except HFValidationError as error:
        raise UserError(f"{name} is no name that the hub could have: {error}") from error
    return Path(found) if isinstance(found, str) else None
