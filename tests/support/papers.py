"""Certificates of one CA, made when they are asked for."""

import datetime
from pathlib import Path

import trustme


def put(path: Path, content: bytes) -> None:
    """In place of what is there, whole."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


class Papers:
    """A CA, its own certificate in a folder, and what it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.ca_file = folder, folder / "ca.pem"
        self.ca = trustme.CA()
        self.pem = bytes(self.ca.cert_pem.bytes())
        put(self.ca_file, self.pem)

    def issue(
        self, name: str, expires: datetime.datetime | None = None, pair: tuple[Path, Path] | None = None
    ) -> tuple[Path, Path]:
        """Certificate and key: `pair`, or files of the folder."""
        issued = self.ca.issue_cert(name, not_after=expires)
        cert, key = pair or (self.folder / f"{name}.pem", self.folder / f"{name}.key")
        put(key, bytes(issued.private_key_pem.bytes()))
        put(cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return cert, key
