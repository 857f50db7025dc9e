"""The checked-in gRPC stubs are what the compiler makes of the `.proto` file today."""

from pathlib import Path

import pytest

from lab.tools import proto

ROOT = Path(__file__).resolve().parents[2]


def test_checked_in_stubs_equal_regenerated_ones(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is missing; install the `dev` extra")
    proto.generate(tmp_path)
    for name in proto.STUBS:
        fresh = (tmp_path / "common" / "pb" / name).read_text(encoding="utf-8")
        kept = (ROOT / "common" / "pb" / name).read_text(encoding="utf-8")
        assert fresh == kept, f"common/pb/{name} is stale: run `make proto`"
