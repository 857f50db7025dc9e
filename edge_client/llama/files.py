"""Where a draft model's file is: on this machine, or on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from common.errors import UserError

HUB_PREFIX = "hf://"
GGUF_MAGIC = b"GGUF"


def find_model(path: str) -> str:
    """The local file of `path`, fetched first if it names one on the hub.

    Raises `UserError` if there is no such file, it cannot be fetched, or it does not begin as a GGUF file.
    """
    local = _fetch(path) if path.startswith(HUB_PREFIX) else Path(path).expanduser()
    if not local.is_file():
        raise UserError(
            f"there is no draft model at {local}; check the path, or use {HUB_PREFIX}org/repo/file.gguf"
        )
    try:
        with local.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise UserError(f"the draft model {local} cannot be read ({error}); check its permissions") from error
    if magic != GGUF_MAGIC:
        raise UserError(
            f"{local} is not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py"
        )
    return str(local)


def split_hub_path(path: str) -> tuple[str, str]:
    """(repository, file in it) of hf://organisation/repository/file. Raises `UserError` on another form."""
    organisation, _, rest = path.removeprefix(HUB_PREFIX).partition("/")
    repository, _, file = rest.partition("/")
    if not (organisation and repository and file):
        raise UserError(f"{path} is not of the form {HUB_PREFIX}organisation/repository/file.gguf")
    return f"{organisation}/{repository}", file


def _fetch(path: str) -> Path:
    repository, file = split_hub_path(path)
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise UserError(
            f"{path} needs huggingface_hub; install it with: pip install huggingface_hub"
        ) from error
    try:
        return Path(hf_hub_download(repo_id=repository, filename=file))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"{path} cannot be fetched ({error}); check the name and the network, "
            "set HF_TOKEN if the repository is gated, or give a local file"
        ) from error
