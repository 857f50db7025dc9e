"""A small Ray cluster of its own on this machine that serves `deploy/ray/serve.yaml`, as a process.

    python -m tests.lab.integrations.ray_cluster --args '{"model": "lab/demo_models/target"}' --replicas 1

Says on standard output where it listens, as a line of JSON, when that many replicas run; then takes lines
`{"replicas": N}` on standard input and says so when it is so. It ends with its standard input.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

CONFIG = Path(__file__).resolve().parents[3] / "deploy" / "ray" / "serve.yaml"

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # its default leaves a file in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",  # it would ask the network
    # By default Ray kills what is late, and on a busy machine all is.
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
}

PATIENCE = 180.0
"""Seconds for a deployment."""

STORE_BYTES = 80 * 2**20
"""About the least that Ray takes; messages of sessions are too small to be stored."""


def example(application: str, args: dict[str, Any], ports: list[int]) -> dict[str, Any]:
    """The configuration with these arguments and ports, and a number of replicas in place of a range."""
    import yaml

    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["grpc_options"]["port"], config["http_options"]["port"] = ports
    (app,) = config["applications"]
    app["import_path"] = application
    app["args"].update(args)
    (deployment,) = app["deployments"]
    deployment["ray_actor_options"] = {"num_cpus": 0.1}
    del deployment["autoscaling_config"]
    return config


@contextlib.contextmanager
def started(wanted: dict[str, Any]) -> Iterator[Any]:
    """Ray and Serve's proxy; yields Serve's client."""
    os.environ.update(ENVIRONMENT)
    import ray
    from ray.serve._private.api import serve_start
    from ray.serve.config import gRPCOptions

    home = tempfile.mkdtemp(prefix="ray")  # a short name: unix sockets lie in it
    try:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            namespace="serve",
            _temp_dir=home,
        )
        options = gRPCOptions(**wanted["grpc_options"])
        yield serve_start(http_options=wanted["http_options"], grpc_options=options)
    finally:
        ray.shutdown()
        shutil.rmtree(home, ignore_errors=True)


def deploy(client: Any, wanted: dict[str, Any], replicas: int) -> None:
    """Until so many replicas run, and no other. Raises `RuntimeError` if they do not."""
    from ray import serve
    from ray.serve.schema import ServeDeploySchema

    (app,) = wanted["applications"]
    app["deployments"][0]["num_replicas"] = replicas
    client.deploy_apps(ServeDeploySchema.model_validate(wanted))
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        status = serve.status().applications.get(app["name"])
        state = None if status is None else status.status
        if state == "DEPLOY_FAILED":
            raise RuntimeError(f"Ray could not deploy it: {status.message} {status.deployments}")
        if state == "RUNNING" and status.deployments["Verifier"].replica_states == {"RUNNING": replicas}:
            return
        time.sleep(0.05)
    raise RuntimeError(f"{replicas} replicas do not run after {PATIENCE:g} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    option = parser.add_argument
    option("--application", default="forerun_ray.application:verifier", help="what builds it (%(default)s)")
    option("--args", type=json.loads, default={}, metavar="JSON", help="beside those of the example")
    option("--replicas", type=int, default=1, metavar="N", help="at first (%(default)s)")
    options = parser.parse_args()
    ports = [free_port(), free_port()]  # Ray takes no 0
    wanted = example(options.application, options.args, ports)
    with open(os.dup(1), "w", encoding="ascii", buffering=1) as out:
        os.dup2(2, 1)  # what Ray and its processes print is not ours
        with started(wanted) as client:
            deploy(client, wanted, options.replicas)
            out.write(json.dumps({"listening": f"127.0.0.1:{ports[0]}"}) + "\n")
            for line in sys.stdin:
                asked = json.loads(line)
                deploy(client, wanted, asked["replicas"])
                out.write(json.dumps(asked) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
