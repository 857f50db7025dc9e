"""What the images' build stages do is a script: its parts, and the check of what it has built."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripts import DOCKER, run


def step(*words: str | Path, **environment: str) -> str:
    """What a function of the script says."""
    script = (DOCKER / "steps.sh").as_posix()
    done = run("bash", "-c", f'source "{script}"; "$@"', "bash", *words, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def machine(folder: Path, name: str) -> str:
    """A PATH with a uname of another machine."""
    program = folder / "bin" / "uname"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {name}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        ("edge", "x86_64", set()),
        ("edge", "aarch64", {"-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod"}),
        ("verifier-cpu", "x86_64", set()),
        (
            "edge-jetson",
            "aarch64",
            {"-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod", "-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=87"},
        ),
    ],
)
def test_llama_is_built_for_other_machines_than_this(
    kind: str, name: str, more: set[str], tmp_path: Path
) -> None:
    words = set(step("cmake_arguments", kind, PATH=machine(tmp_path, name)).split())
    assert {"-DGGML_NATIVE=OFF", "-DGGML_OPENMP=OFF", "-DLLAVA_BUILD=OFF"} <= words
    assert words - {"-DGGML_NATIVE=OFF", "-DGGML_OPENMP=OFF", "-DLLAVA_BUILD=OFF", "-DLLAMA_CURL=OFF"} == more


def test_wheels_that_were_built_here_otherwise_are_not_taken() -> None:
    text = (DOCKER / "steps.sh").read_text(encoding="utf-8")
    assert "options=(--require-hashes --no-cache-dir " in text


def test_an_installation_loses_what_nothing_loads(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    kept = {
        "torch/bin/torch_shm_manager",
        "other/tests/x.py",
        "torch/lib/libtorch.so",
        "numpy/core.py",
        "llama_cpp/lib/libx.so.0.1.2",
    }
    lost = {
        *("include/llama.h", "bin/tool", "lib/libx.so", "lib/cmake/x.cmake", "torch/include/a/b.h"),
        *("torch/bin/test_api", "torch/bin/models/x.ptl", "torch/share/x", "torch/test/x.py"),
        *("numpy/a/tests/test_x.py", "sympy/tests/test_x.py", "numpy/lib/x.a"),
    }
    for name in kept | lost:
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"library")
    step("slim", tmp_path)
    assert {path.relative_to(packages).as_posix() for path in packages.rglob("*") if path.is_file()} == kept


def test_a_library_is_there_once_under_all_its_names(tmp_path: Path) -> None:
    for name in ("libx.so", "libx.so.0", "libx.so.0.1.2"):
        (tmp_path / name).write_bytes(b"library")
    for name in ("libx-base.so", "libx-base.so.0"):
        (tmp_path / name).write_bytes(b"another")
    (tmp_path / "libother.so").write_bytes(b"one")
    (tmp_path / "libother.so.1").write_bytes(b"two")
    step("one_of_each", tmp_path)
    real = {path.name for path in tmp_path.iterdir() if not path.is_symlink()}
    assert real == {"libx.so.0.1.2", "libx-base.so.0", "libother.so", "libother.so.1"}
    assert (tmp_path / "libx.so").resolve() == tmp_path / "libx.so.0.1.2"
    assert (tmp_path / "libother.so").read_bytes() == b"one"


# --- steps.sh check -----------------------------------------------------------------------------------------

PROGRAM = """#!/bin/sh
case "$*" in
*forerun.probe*) test -e "$HOME/well" ;;
*)
	{begins}
	sleep 600 &
	trap "kill $!; {ends}" TERM
	touch "$HOME/well"
	wait
	;;
esac
"""
"""In place of an image's Python: a server that is well once it runs, and what asks it."""

WELL = 'rm \\"$HOME/well\\"; exit 0'


@pytest.fixture
def prefix() -> Iterator[Path]:
    """A folder that everybody can read, as pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="forerun-prefix.") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for below in ("prefix", "prefix/bin", "tmp"):
            (folder / below).mkdir(mode=0o755)
        yield folder / "prefix"


def checked(prefix: Path, begins: str = ":", ends: str = WELL) -> subprocess.CompletedProcess[str]:
    program = prefix / "bin" / "python"
    program.write_text(PROGRAM.replace("{begins}", begins).replace("{ends}", ends))
    program.chmod(0o755)
    room = prefix.parent / "tmp"
    done = run(DOCKER / "steps.sh", "check", "verifier-cpu", prefix, TMPDIR=str(room))
    assert not list(room.iterdir()), "nothing stays behind"
    return done


def test_what_starts_is_well_and_ends_passes_the_check(prefix: Path) -> None:
    done = checked(prefix)
    assert done.returncode == 0, done.stderr
    assert "starts as user 10001, is well, writes nothing but /tmp, and ends on SIGTERM" in done.stdout


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        ("exit 3", WELL, "it ended by itself"),
        (":", 'rm \\"$HOME/well\\"; exit 3', "it ended with code 3"),
        (":", "exit 0", "its health outlives it"),
    ],
)
def test_the_check_says_what_is_wrong(prefix: Path, begins: str, ends: str, said: str) -> None:
    done = checked(prefix, begins, ends)
    assert done.returncode == 1
    assert f"steps.sh: {said}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_tree_that_its_user_can_write_is_refused(prefix: Path) -> None:
    (prefix / "module.py").touch()
    (prefix / "module.py").chmod(0o666)
    done = checked(prefix)
    assert done.returncode == 1
    assert f"user 10001 can write below {prefix}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_the_check_runs_as_nobody_without_any_right(prefix: Path) -> None:
    seen = "grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs)' /proc/self/status >&2"
    done = checked(prefix, begins=seen)
    found = dict(line.split(":", 1) for line in done.stderr.splitlines() if ":\t" in line)
    assert set(found["Uid"].split()) == set(found["Gid"].split()) == {"10001"}
    assert not found["Groups"].split()
    assert int(found["CapEff"], 16) == int(found["CapBnd"], 16) == 0
    assert found["NoNewPrivs"].strip() == "1"
