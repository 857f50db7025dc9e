"""A Hugging Face hub in a thread, as huggingface_hub asks one. Its repositories hold the same files."""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.small_server import Handler, serving

COMMIT = "c0ffee" + "0" * 34
REPOSITORY = "organisation/repository"


@dataclass
class Hub:
    """Serves the files of its repositories and notes every request as (method, path, token)."""

    files: dict[str, bytes] = field(default_factory=dict)
    gated: bool = False
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""
    repositories: tuple[str, ...] = (REPOSITORY,)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which huggingface_hub finds this hub, without a proxy in between."""
        return {"HF_ENDPOINT": self.address, "no_proxy": "*", "HF_HUB_OFFLINE": "0"}

    def __call__(self, request: Handler) -> None:
        path = request.path.partition("?")[0]
        self.seen.append((request.command, path, request.headers.get("Authorization", "")))
        asked = next((each for each in self.repositories if f"/{each}/" in f"{path}/"), None)
        if asked is None:
            self._refuse(request, 404, "RepoNotFound")
        elif self.gated:
            self._refuse(request, 403, "GatedRepo")
        elif name := re.fullmatch(rf"/{asked}/resolve/[^/]+/(.+)", path):
            self._send(request, name[1])
        elif "/tree/" in path:
            self._reply(request, [self._entry(name) for name in self.files])
        else:
            self._reply(request, {"id": asked, "sha": COMMIT})

    def _entry(self, name: str) -> dict[str, Any]:
        return {"type": "file", "path": name, "oid": "0" * 40, "size": len(self.files[name])}

    def _send(self, request: Handler, name: str) -> None:
        if name not in self.files:
            self._refuse(request, 404, "EntryNotFound")
            return
        data = self.files[name]
        headers = {"Content_Length": str(len(data)), "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        request.begin(200, X_Repo_Commit=COMMIT, **headers)
        if request.command != "HEAD":
            request.wfile.write(data)

    def _refuse(self, request: Handler, status: int, code: str) -> None:
        request.reply(status, X_Error_Code=code, X_Repo_Commit=COMMIT)

    def _reply(self, request: Handler, found: Any) -> None:
        request.reply(200, json.dumps(found).encode(), Content_Type="application/json")


@contextlib.contextmanager
def serving_hub(**files: bytes) -> Iterator[Hub]:
    """Serve a hub while the block runs."""
    hub = Hub(dict(files))
    with serving(hub) as address:
        hub.address = f"http://{address}"
        yield hub
