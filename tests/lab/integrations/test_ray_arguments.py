"""The arguments of a Ray application give the configuration of the same options of `forerun verify`."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import UserError
from forerun_ray.arguments import RAYS_OWN, from_ray
from tests.cloud_verifier.configured import configured

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "ray" / "serve.yaml"


@pytest.mark.parametrize("limit", [3, "3"], ids=["number", "text"])
@pytest.mark.parametrize("key", ["max_sessions", "max-sessions"])
def test_an_argument_is_an_option(key: str, limit: int | str) -> None:
    words = ["--model", "m", "--max-sessions", "3", "--listen", "127.0.0.1:0", "--tenant-header", "x"]
    assert from_ray({"model": "m", key: limit, "tenant_header": "x"}) == configured(*words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "--model"),
        ({"model": "m", "slot": 3}, "slots"),
        ({"model": "m", "slots": "many"}, "target.slots"),
        *(({"model": "m", name: "x"}, RAYS_OWN[name]) for name in RAYS_OWN),
        ({"model": "m", "tls-cert": "x"}, RAYS_OWN["tls_cert"]),
    ],
)
def test_an_argument_that_ray_cannot_have_is_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match="in the application's args: ") as caught:
        from_ray(args)
    assert words in str(caught.value)


def test_the_example_names_modules_and_limits_that_exist() -> None:
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    (app,) = example["applications"]
    assert from_ray(app["args"]).target.path == "lab/demo_models/target"
    (servicer,) = example["grpc_options"]["grpc_servicer_functions"]
    module, name = servicer.rsplit(".", 1)
    assert callable(getattr(importlib.import_module(module), name))
    (deployment,) = app["deployments"]
    assert "graceful_shutdown_timeout_s" not in deployment, "it would take the place of `grace`"
    assert deployment["autoscaling_config"]["target_ongoing_requests"] <= app["args"]["max_sessions"]


def test_the_verifiers_own_part_needs_no_ray() -> None:
    importlib.import_module("forerun_ray.proxied_calls")
    assert "ray" not in sys.modules
