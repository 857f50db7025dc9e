"""What an application of Ray Serve is told becomes the options of `forerun verify`, or a sentence."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.errors import UserError
from forerun.cli import build_parser
from forerun.ray_options import RAYS_OWN, options_from

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "ray" / "serve.yaml"


def test_they_are_those_of_the_command_by_their_names() -> None:
    args = {"model": "m", "max-sessions": "3", "step_floor": 20, "warm_graphs": "true", "cuda_graphs": False}
    found = options_from({**args, "allow_rule": ["typical", "topk-gap"]})
    words = ["verify", "--model", "m", "--max-sessions", "3", "--step-floor", "20", "--warm-graphs"]
    words += ["--no-cuda-graphs", "--allow-rule", "typical", "--allow-rule", "topk-gap"]
    asked = build_parser("verify").parse_args([*words, "--listen", "127.0.0.1:0"])
    assert vars(found) == {key: value for key, value in vars(asked).items() if key not in ("command", "run")}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "required: --model"),
        ({"model": "m", "slot": 3}, "unrecognized arguments: --slot=3"),
        ({"model": "m", "slots": "many"}, "argument --slots: 'many' is neither auto nor a whole number"),
        ({"model": "m", "coupled_only": False}, "unrecognized arguments: --no-coupled-only"),
        *(({"model": "m", name: "x"}, RAYS_OWN[name]) for name in RAYS_OWN),
        (
            {"model": "m", "tls-cert": "x"},
            "tls-cert cannot be given, because the port of Ray's proxy is plain",
        ),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(args: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match="in the application's args: ") as caught:
        options_from(args)
    assert words in str(caught.value)


def test_the_example_names_what_is_there() -> None:
    found = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    (app,) = found["applications"]
    assert options_from(app["args"]).model == "demo_models/target"
    (servicer,) = found["grpc_options"]["grpc_servicer_functions"]
    module, name = servicer.rsplit(".", 1)
    assert callable(getattr(importlib.import_module(module), name))
    (deployment,) = app["deployments"]
    assert deployment["graceful_shutdown_timeout_s"] > app["args"]["grace"]
    assert deployment["autoscaling_config"]["target_ongoing_requests"] <= app["args"]["max_sessions"]


def test_the_verifier_itself_needs_no_ray() -> None:
    import cloud_verifier.ray_serve  # noqa: F401
    import forerun.ray_options  # noqa: F401

    assert "ray" not in sys.modules
