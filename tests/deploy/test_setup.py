"""What `make` does in a fresh clone: what it installs for which command, and what it says meanwhile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from lab.tools import install

ROOT = Path(__file__).resolve().parents[2]
INSTALLS = "lab.tools.install"

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*words: str, **variables: str) -> str:
    """Return what make says."""
    given = [f"{name}={value}" for name, value in variables.items()]
    done = subprocess.run(["make", *words, *given], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@needs_make
@pytest.mark.parametrize("target", ["chart", "sbom", "manifests", "audit", "locks"])
def test_what_only_renders_needs_neither_torch_nor_llama_cpp(target: str, tmp_path: Path) -> None:
    planned = make("-n", target, VENV=str(tmp_path / "venv"))
    assert INSTALLS not in planned
    assert "pip install" in planned
    assert INSTALLS in make("-n", "demo", VENV=str(tmp_path / "venv"))


def test_the_chart_is_rendered_by_what_that_environment_has() -> None:
    """Of all distributions that are installed here, it loads one."""
    code = "import sys, lab.tools.chart; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    holds = metadata.packages_distributions()
    loaded = {each for name in done.stdout.split() for each in holds.get(name, ())}
    assert loaded - {"forerun", "setuptools"} == {"PyYAML"}  # setuptools has a hook in every start


def flags(text: str) -> dict[str, str]:
    return dict(re.findall(r"-D(\w+)=(\S+)", text))


@needs_make
def test_images_and_wheels_leave_out_of_llama_cpp_what_a_clone_leaves_out() -> None:
    """Ours are in the Makefile; the images' stages, and the wheels of a release, ask steps.sh."""
    printed = make("-s", "--eval", "print: ; @echo '$(LLAMA_CMAKE)'", "print")
    words = "source deploy/docker/steps.sh; cmake_arguments edge"
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    own = flags(printed)
    assert len(own) == 2
    assert own.items() <= flags(done.stdout).items()
    file = Path(own["CMAKE_PROJECT_llama_cpp_INCLUDE"]).relative_to(ROOT)
    assert (ROOT / file).is_file()
    assert f"!{file}" in (ROOT / ".dockerignore").read_text("utf-8").splitlines()


@needs_make
def test_ready_wheels_are_asked_for_only_without_flags_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    place = "https://releases.example/wheels"
    venv = str(tmp_path / "venv")
    assert f'--wheels "{place}"' in make("-n", "setup", VENV=venv, WHEELS=place)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    assert '--wheels ""' in make("-n", "setup", VENV=venv, WHEELS=place)


@pytest.mark.parametrize(
    ("lines", "doing"),
    [
        ([], "starts"),
        (["Collecting torch==2.13.0", "  Downloading torch-2.13.0.whl (190.3 MB)"], "(190.3 MB)"),
        (
            ["  Installing build dependencies: finished with status 'done'"],
            "part: Installing build dependencies",
        ),
        (["  *** Configuring CMake...", "  [1/74] /usr/bin/g++ -c ggml.cpp"], "[1/74]"),
        (["[37/74] Building CXX object"], "[37/74], about 1:40 left"),
        (["[ 50%] Building C object"], "[50/100], about 1:40 left"),
        (["[74/74] Linking", "Installing collected packages: llama-cpp-python"], "Installing collected"),
    ],
    ids=["nothing", "fetching", "preparing", "ninja", "ninja later", "make", "afterwards"],
)
def test_what_pip_and_cmake_do_is_read_from_what_they_say(lines: list[str], doing: str) -> None:
    job = install.Job("part", ())
    for line in lines:
        job.note(line)
    said = job.doing(time.monotonic() + 100.0)
    assert doing in said
    assert "finished" not in said


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-c", code)


def test_two_programs_run_side_by_side_and_are_reported(tmp_path: Path) -> None:
    """Each waits for the other's file, so that neither could run alone."""
    wait = (
        "import pathlib, sys, time\n"
        "mine, other = (pathlib.Path(sys.argv[1]) / each for each in sys.argv[2:])\n"
        "mine.touch(); print('[1/2] Building', flush=True)\n"
        "while not other.exists(): time.sleep(0.01)\n"
    )
    pair = (("a", "b"), ("b", "a"))
    jobs = [install.Job(mine, (*program(wait), str(tmp_path), mine, other)) for mine, other in pair]
    said = list[str]()
    install.run(jobs, time.monotonic(), said.append)
    assert [job.code for job in jobs] == [0, 0]
    assert all(name in said[0] for name in ("a: ", "b: "))


def test_a_program_that_fails_ends_the_other_and_is_quoted() -> None:
    long = install.Job("long", program("import time; time.sleep(600)"))
    bad = install.Job("bad", program("print('no compiler'); raise SystemExit(3)"))
    with pytest.raises(SystemExit) as failed:
        install.run([long, bad], time.monotonic(), lambda text: None)
    assert "no compiler" in str(failed.value.code)
    assert "bad failed with code 3" in str(failed.value.code)
    deadline = time.monotonic() + 60
    while long.code is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interruption_ends_all_programs() -> None:
    job = install.Job("long", program("import time; time.sleep(600)"))

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install.run([job], time.monotonic(), interrupt)
    deadline = time.monotonic() + 60
    while job.code is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_release_that_is_built_is_the_pinned_one() -> None:
    requirement = f'"{install.LLAMA}=={install.pinned(install.LLAMA)}"'
    assert requirement in (ROOT / "pyproject.toml").read_text("utf-8")
    assert install.is_installed("pytest")
