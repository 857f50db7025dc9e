"""Weights are whole safetensors files, or a sentence says what is wrong before anything is loaded."""

import json
import struct
from pathlib import Path

import pytest

from cloud_verifier.engine.model.weight_files import check_file, check_weights
from common.errors import UserError
from tests import wording

HEADER = json.dumps({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
WHOLE = struct.pack("<Q", len(HEADER)) + HEADER + bytes(24)


def test_whole_files_are_passed_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.safetensors").write_bytes(WHOLE)
    check_weights("target", tmp_path)
    (tmp_path / "2.safetensors").write_bytes(WHOLE[:-1])
    with wording.raises(UserError) as caught:
        check_weights("target", tmp_path)
    assert "2.safetensors" in str(caught.value)


def test_a_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for length in range(len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        with pytest.raises(UserError):
            check_file(path)


def test_pickles_are_no_way_out(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with wording.raises(UserError):
        check_weights("target", tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with wording.raises(UserError):
        check_weights("target", tmp_path)
