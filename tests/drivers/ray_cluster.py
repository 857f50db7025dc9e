"""A Ray cluster of its own on loopback that serves the tiny target, as a process.

    python -m tests.drivers.ray_cluster FOLDER GRPC_PORT HTTP_PORT

It deploys `deploy/ray/serve.yaml` with the tiny target in place of a model, and does so again for each line
of JSON on its standard input, `{"replicas": N}`; each time it says so on its standard output when that many
run. Each replica marks its steps in a file in FOLDER, and holds every step while a file `hold` is there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # its default leaves a file in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",  # it would ask the network
    # A machine that is busy with other tests takes its time; by default Ray kills what is late.
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_worker_register_timeout_seconds": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_DEDUP_LOGS": "0",
}
CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "ray" / "serve.yaml"
PATIENCE = 180.0


def application(args: Mapping[str, Any]) -> Any:
    """As `forerun.ray_serve.verifier`; `model` is FOLDER."""
    from forerun.ray_serve import verifier

    return verifier(args, loading)


def loading(options: Any) -> Any:
    """The tiny target and its token table, in a replica."""
    from cloud_verifier.core.target import StepPlan, StepResult, TargetInfo
    from tests.drivers.tiny import EOS, TABLE, VOCABULARY
    from tests.worlds.models import VOCAB, TinyTarget

    folder = Path(options.model)

    class Watched(TinyTarget):
        def evaluate(self, plan: StepPlan) -> StepResult:
            with (folder / f"replica-{os.getpid()}").open("a", encoding="ascii") as out:
                out.write(".")
            while (folder / "hold").exists():
                time.sleep(0.01)
            return super().evaluate(plan)

    return Watched(TargetInfo("tiny", VOCAB, 512, options.slots, EOS, VOCABULARY.fingerprint)), TABLE


def config(folder: str, grpc_port: int, http_port: int, replicas: int) -> dict[str, Any]:
    """The example with this target, these ports and so many replicas."""
    import yaml

    found: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    found["grpc_options"]["port"], found["http_options"]["port"] = grpc_port, http_port
    (app,) = found["applications"]
    app["import_path"] = "tests.drivers.ray_cluster:application"
    app["args"].update(model=folder, slots=4096)
    (deployment,) = app["deployments"]
    deployment["ray_actor_options"] = {"num_cpus": 0.1}
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = replicas
    return found


def deploy(client: Any, wanted: dict[str, Any]) -> None:
    """Until as many replicas run as are wanted, and no other. Raises `RuntimeError` if they do not."""
    from ray import serve
    from ray.serve.schema import ServeDeploySchema

    client.deploy_apps(ServeDeploySchema.model_validate(wanted))
    (app,) = wanted["applications"]
    number = app["deployments"][0]["num_replicas"]
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        status = serve.status().applications.get(app["name"])
        if status is not None and status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            raise RuntimeError(f"{status.status}: {status.message} {status.deployments}")
        if status is not None and status.status == "RUNNING":
            states = status.deployments["Verifier"].replica_states
            if states == {"RUNNING": number}:
                return
        time.sleep(0.05)
    raise RuntimeError(f"not so within {PATIENCE:g} s")


def main(folder: str, grpc_port: int, http_port: int) -> None:
    os.environ.update(ENVIRONMENT)
    import ray
    from ray.serve._private.api import serve_start
    from ray.serve.config import gRPCOptions

    home = tempfile.mkdtemp(prefix="ray")  # short: unix sockets lie in it
    out = os.dup(1)
    os.dup2(2, 1)  # what Ray and its actors print is not ours
    try:
        ray.init(
            num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, namespace="serve",
            _temp_dir=home, _node_ip_address="127.0.0.1", log_to_driver=True,
        )  # fmt: skip
        wanted = config(folder, grpc_port, http_port, 2)
        options = gRPCOptions(**wanted["grpc_options"])
        client = serve_start(http_options=wanted["http_options"], grpc_options=options)
        deploy(client, wanted)
        os.write(out, b'{"replicas": 2}\n')
        for line in sys.stdin:
            number = json.loads(line)["replicas"]
            deploy(client, config(folder, grpc_port, http_port, number))
            os.write(out, json.dumps({"replicas": number}).encode() + b"\n")
    finally:
        ray.shutdown()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
