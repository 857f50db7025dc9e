"""What outside tools can say of deploy/: `python -m tools.deploy_check`. Prints JSON, ends with 1 if any of
them complains.

- kubernetes-validate: every object against the schemas of Kubernetes 1.29 and all newer ones that it has;
- checkov: every overlay, and the chart with its addons if Helm is there;
- yamllint: every file that is written by hand;
- our own rules (tools/deploy_rules).

The tools (400 MiB) are no dependency of anything: `--install` puts them into the folder that `--tools` names,
an environment of their own, and later calls find them there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import yaml

from tools.deploy_rules import RULES
from tools.deploy_rules.view import Object, View, title
from tools.helm_objects import OBJECTS, ROOT, checked_in, overlays

PINNED = ("checkov==3.3.30", "kubernetes-validate==1.37.0", "yamllint==1.38.0")
OLDEST = "1.29"
CHART = OBJECTS.parent
ADDONS = ("keda", "monitoring", "mtls")
SCHEMAS = Path(__file__).with_name("kubernetes_schemas.py")


class Missing(Exception):
    """A tool that is not there; the sentence says how to get it."""


def install(folder: Path) -> None:
    """Into a new environment, or one that an earlier call has made."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *PINNED], check=True)


def tool(folder: Path, name: str) -> str:
    """A program of the environment. Raises `Missing`."""
    found = shutil.which(name, path=str(folder / "bin"))
    if found is None:
        raise Missing(f"{folder / 'bin' / name} is not there; run: python -m tools.deploy_check --install")
    return found


def with_pods(objects: list[Object]) -> list[Object]:
    """And the pods of a LeaderWorkerSet as pods: no tool looks into a resource that it does not know."""
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **pod.template["metadata"],
                "name": pod.owner.lower().replace("/", "-").replace(" ", "-"),
                "namespace": "forerun",
            },
            "spec": pod.spec,
        }
        for pod in View("", objects).pods
        if "LeaderWorkerSet" in pod.owner
    ]
    return [*objects, *pods]


def validated(folder: Path, objects: dict[str, list[Object]]) -> dict[str, Any]:
    """What `kubernetes_schemas.py` says of all distinct objects, in the tools' own environment."""
    distinct = {json.dumps(each, sort_keys=True) for found in objects.values() for each in with_pods(found)}
    python = tool(folder, "python")
    done = subprocess.run(
        [python, str(SCHEMAS), OLDEST],
        input=f"[{','.join(sorted(distinct))}]",
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def scanned(folder: Path, objects: list[Object]) -> dict[str, Any]:
    """checkov's counts of some objects, and what failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(with_pods(objects), file)
        file.flush()
        quietly = (
            "--framework",
            "kubernetes",
            "--compact",
            "--skip-download",
            "--output",
            "json",
            "--soft-fail",
        )
        text = subprocess.check_output([tool(folder, "checkov"), "--file", file.name, *quietly], text=True)
    found = json.loads(text)
    results = found["results"]
    return {
        "passed": found["summary"]["passed"],
        "failed": found["summary"]["failed"],
        "skipped": sorted(
            {f"{e['check_id']}: {e['check_result']['suppress_comment']}" for e in results["skipped_checks"]}
        ),
        "failures": [f"{e['check_id']} {e['resource']}" for e in results["failed_checks"]],
    }


def chart(helm: str, profile: str, *addons: str) -> list[Object]:
    """What Helm renders."""
    values = json.dumps({"profile": profile, "addons": addons, "createNamespace": True})
    command = [
        helm,
        "template",
        "verifier",
        str(CHART),
        "-n",
        "forerun",
        "--kube-version",
        f"{OLDEST}.0",
        "-f",
        "-",
    ]
    text = subprocess.run(command, input=values, text=True, stdout=subprocess.PIPE, check=True).stdout
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def linted(folder: Path) -> list[str]:
    """yamllint's complaints."""
    deploy = ROOT / "deploy"
    command = [tool(folder, "yamllint"), "-c", str(deploy / "yamllint.yaml"), "-f", "parsable", "."]
    done = subprocess.run(command, cwd=deploy, text=True, stdout=subprocess.PIPE, check=False)
    return done.stdout.splitlines()


def ruled(objects: dict[str, list[Object]]) -> dict[str, Any]:
    """Our own rules on every overlay."""
    found = {
        overlay: [f"{name}: {said}" for name, rule in RULES.items() for said in rule(View(overlay, each))]
        for overlay, each in objects.items()
    }
    complaints = [f"{overlay}: {said}" for overlay, each in found.items() for said in each]
    return {"rules": len(RULES), "assertions": len(RULES) * len(objects), "complaints": complaints}


def report(folder: Path, helm: str | None) -> dict[str, Any]:
    """All of it."""
    objects = {overlay: checked_in(overlay) for overlay in overlays()}
    scans = {overlay: scanned(folder, found) for overlay, found in objects.items()}
    if helm is not None:
        scans[f"chart: gpu with {', '.join(ADDONS)}"] = scanned(folder, chart(helm, "gpu", *ADDONS))
        scans["chart: gateway"] = scanned(folder, chart(helm, "gateway"))
    return {
        "kubernetes-validate": validated(folder, objects),
        "checkov": scans,
        "yamllint": linted(folder),
        "rules": ruled(objects),
        "objects": {overlay: [title(each) for each in found] for overlay, found in objects.items()},
    }


def is_clean(found: dict[str, Any]) -> bool:
    """Whether nobody complains."""
    failed = sum(scan["failed"] for scan in found["checkov"].values())
    return not (
        failed or found["yamllint"] or found["rules"]["complaints"] or found["kubernetes-validate"]["errors"]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", type=Path, default=ROOT / ".venv-deploy", help="folder (%(default)s)")
    parser.add_argument("--install", action="store_true", help="put the tools there first")
    parser.add_argument("--helm", default=shutil.which("helm"), help="Helm's program (the one of PATH)")
    options = parser.parse_args(arguments)
    try:
        if options.install:
            install(options.tools)
        found = report(options.tools, options.helm)
    except Missing as error:
        print(f"deploy_check: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"clean": is_clean(found), **found}, indent=1))
    return 0 if is_clean(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
