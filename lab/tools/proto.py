"""Writes the gRPC stubs from the `.proto` files of `proto/forerun/v1`; `make proto` runs this file.

The stubs are checked in, so that an install needs no compiler, and a test regenerates and compares them.
They are generated with the oldest release that the project supports, because generated code refuses a
runtime older than its generator (protobuf's cross-version guarantee; grpcio checks the same at import).
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_DIR = ROOT / "proto" / "forerun" / "v1"
PACKAGE = "common/pb"
SOURCES = ("verifier",)
STUBS = tuple(f"{name}_pb2{ending}" for name in SOURCES for ending in (".py", ".pyi"))


def protoc_arguments(source_dir: Path, out_dir: Path) -> list[str]:
    """Return the compiler's command line, program name first.

    `-Icommon/pb=DIR` shows the files of DIR to the compiler under a virtual path, and the generated modules
    import each other by that path: `from common.pb import verifier_pb2`. Without it they would live in
    `proto.forerun.v1`, or need editing after each run.
    """
    well_known = resources.files("grpc_tools") / "_proto"  # google/protobuf/*.proto
    return [
        "protoc",
        f"-I{PACKAGE}={source_dir}",
        f"-I{well_known}",
        f"--python_out={out_dir}",
        f"--pyi_out={out_dir}",
        *(f"{PACKAGE}/{name}.proto" for name in SOURCES),
    ]


def generate(out_dir: Path, source_dir: Path = SOURCE_DIR) -> list[Path]:
    """Writes the stubs below `out_dir`, as `common/pb/verifier_pb2.py` and so on, and returns their paths.

    Ends the program when the compiler refuses the source; its own words are on standard error.
    """
    from grpc_tools import protoc  # a development tool: importing this module must not need it

    out_dir.mkdir(parents=True, exist_ok=True)
    if status := protoc.main(protoc_arguments(source_dir, out_dir)):
        sys.exit(f"protoc ended with status {status} on the files of {source_dir}")
    return [out_dir / PACKAGE / name for name in STUBS]


if __name__ == "__main__":
    for path in generate(ROOT):
        print(path.relative_to(ROOT))
