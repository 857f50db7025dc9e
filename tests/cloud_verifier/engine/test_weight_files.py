"""Weights are whole safetensors files, or a sentence says what is wrong before anything is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cloud_verifier.engine.weight_files import INDEX, check_file, check_weights
from common.errors import UserError

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def weights(header: object, body: int = 32, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(body)


def write(folder: Path, data: bytes, name: str = "model.safetensors") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_a_whole_file_is_passed(tmp_path: Path) -> None:
    path = write(tmp_path, weights({"__metadata__": {"format": "pt"}, "b": B, "a": A}))
    assert check_file(path) == {"a", "b"}
    check_weights("target", tmp_path)


@pytest.mark.torch
def test_what_safetensors_writes_is_passed(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    types = [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn]
    tensors = {str(kind): torch.zeros(3, 5).to(kind) for kind in types} | {"none": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert check_file(tmp_path / "model.safetensors") == set(tensors)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is cut off: 0 bytes"),
        (weights({"a": A, "b": B})[:20], "is cut off"),
        (weights({"a": A, "b": B}, length=1 << 63), "is cut off"),
        (weights({"a": A, "b": B}, body=31), "has 31 bytes of tensors, and its header tells of 32"),
        (weights({"a": A, "b": B}, body=33), "has 33 bytes of tensors"),
        (weights({"a": A}), "its header tells of 24"),
        (weights({"b": B}), "'b' of model.safetensors begins at byte 24, where 0 should be"),
        (weights({"a": A, "b": A}, body=24), "'b' of model.safetensors begins at byte 0, where 24"),
        (weights([]), "is no JSON object"),
        (weights(b"\xff\xfe"), "is no JSON in UTF-8"),
        (weights(b"[" * 100_000), "is no JSON in UTF-8"),
        (weights(b'{"a": {}, "a": {}}'), "has a name twice"),
        (weights({"a": 3}), "is not told by dtype, shape and data_offsets"),
        (weights({"a": A | {"more": 1}}), "is not told by dtype"),
        (weights({"a": A | {"dtype": "PICKLE"}}), "has the unknown type 'PICKLE'"),
        (weights({"a": A | {"dtype": ["F32"]}}), "has the unknown type"),
        (weights({"a": A | {"shape": [-2, -3]}}), "has an impossible shape"),
        (weights({"a": A | {"shape": [2, 3.0]}}), "has an impossible shape"),
        (weights({"a": A | {"shape": [True, 6]}}), "has an impossible shape"),
        (weights({"a": A | {"shape": [1] * 17}}), "has an impossible shape"),
        (weights({"a": A | {"data_offsets": [24, 0]}}), "has impossible data_offsets"),
        (weights({"a": A | {"data_offsets": [0, 24, 48]}}), "has impossible data_offsets"),
        (weights({"a": A | {"data_offsets": [0, 1 << 70]}}), "has impossible data_offsets"),
        (weights({"a": A | {"shape": [2**40, 2**40]}}), "which its type and shape do not fill"),
        (weights({"a": A, "b": B, "__metadata__": {"a": 1}}), "the metadata of model.safetensors are no"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, data: bytes, words: str) -> None:
    write(tmp_path, data)
    with pytest.raises(UserError, match=f"cannot load the target model 'target': .*{words}"):
        check_weights("target", tmp_path)


def test_every_beginning_of_a_file_is_told_to_be_cut_off(tmp_path: Path) -> None:
    whole = weights({"a": A, "b": B})
    for length in range(len(whole)):
        with pytest.raises(UserError):
            check_file(write(tmp_path, whole[:length]))


def test_pickles_are_no_way_out(tmp_path: Path) -> None:
    write(tmp_path, b"\x80\x04.", "pytorch_model.bin")
    with pytest.raises(UserError, match=r"holds no \*\.safetensors.*other formats can run code"):
        check_weights("target", tmp_path)


def index(folder: Path, found: Any) -> None:
    text = found if isinstance(found, str) else json.dumps({"weight_map": found})
    (folder / INDEX).write_text(text)


def test_of_several_files_those_of_the_index_are_checked(tmp_path: Path) -> None:
    write(tmp_path, weights({"a": A}, 24), "1.safetensors")
    write(tmp_path, b"damaged, and not named", "other.safetensors")
    index(tmp_path, {"a": "1.safetensors"})
    check_weights("target", tmp_path)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"a": "2.safetensors"}, "names '2.safetensors', which is not in its folder"),
        ({"a": "../1.safetensors"}, "which is not in its folder"),
        ({"b": "1.safetensors"}, "has no tensor 'b'"),
        ({"a": 1}, "has no weight_map"),
        ({}, "has no weight_map"),
        ("[]", "has no weight_map"),
        ("{", "is no JSON"),
    ],
)
def test_an_index_that_is_wrong_is_told(tmp_path: Path, found: Any, words: str) -> None:
    write(tmp_path, weights({"a": A}, 24), "1.safetensors")
    index(tmp_path, found)
    with pytest.raises(UserError, match=words):
        check_weights("target", tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        check_weights("target", tmp_path)
