"""Runs a verifier as an application of Ray Serve: `serve run deploy/ray/serve.yaml` (README.md).

The verifier is the one that `forerun verify` makes of the same options; Ray only carries its calls. Only Ray
imports this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig

from cloud_verifier.server.calls import VerifierService
from cloud_verifier.server.lifecycle import Lifecycle
from cloud_verifier.server.serving import identity_of, load, watched, worker_of
from cloud_verifier.settings import VerifierConfig
from cloud_verifier.telemetry.monitor import DENIED
from common.privacy import Privacy
from forerun.commands.verify import check, logged
from forerun_ray.arguments import from_ray
from forerun_ray.proxied_calls import RayFace

if TYPE_CHECKING:
    from cloud_verifier.core.engine_protocol import TargetEngine
    from common.wire.describe import TokenTable

MOST_CALLS = 1000
"""Most calls at once in one replica. It exceeds what a verifier admits, because a verifier refuses the others
with a time to retry, while Ray would keep them waiting."""

Load = Callable[[VerifierConfig], "tuple[TargetEngine, TokenTable]"]


class Verifier(RayFace):
    """Runs one replica."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it, in the event loop that calls come in
        self, config: VerifierConfig, loading: Load = load
    ) -> None:
        check(config)
        self._stack = contextlib.AsyncExitStack()  # never closed: Ray ends the process
        self._stack.enter_context(logged(config))
        engine, table = loading(config)
        worker = worker_of(config, engine)
        caller, files = identity_of(config.identity)
        privacy = Privacy[config.server.privacy.upper()]
        service = VerifierService(worker, worker.scheduler.info, table, caller, privacy, files.get(DENIED))
        super().__init__(service, (RayError,))
        self._lifecycle = await self._stack.enter_async_context(Lifecycle(worker, service, files=files))
        await self._stack.enter_async_context(watched(config.operations, worker))

    async def check_health(self) -> None:
        """Raise if this replica must be replaced; Ray then starts another. A full verifier is healthy, since
        its admission refuses calls itself."""
        self._lifecycle.check()


def verifier(args: Mapping[str, Any]) -> Any:
    """Build the application. Ray needs a function of one argument."""
    return application(args, load)


def application(args: Mapping[str, Any], loading: Load) -> Any:
    """Build an application whose engine comes from `loading`. Serve's configuration may override what is set
    here. Raise `UserError`."""
    config = from_ray(args)
    deployment = serve.deployment(
        Verifier,
        name="Verifier",
        max_ongoing_requests=max(MOST_CALLS, 2 * config.limits.max_sessions),
        graceful_shutdown_timeout_s=config.server.grace,  # Ray cuts off the sessions still there then
        ray_actor_options={"num_gpus": 1 if config.target.device.startswith("cuda") else 0},
        request_router_config=RequestRouterConfig(request_router_class="forerun_ray.router.SessionRouter"),
    )
    return deployment.bind(config, loading)
