"""A verifier as an application of Ray Serve: `serve run deploy/ray/serve.yaml` (docs/ray.md).

It is the verifier that `forerun verify` makes of the same options; Ray only carries its calls. Imported by
Ray alone, and with `cloud_verifier.ray_router` all that needs Ray.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ray import serve
from ray._private import worker as ray_worker
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig

from cloud_verifier.heart import FLUSH_TIME, Heart
from cloud_verifier.ray_serve import RayFace
from cloud_verifier.service import VerifierService
from cloud_verifier.telemetry.trust import DENIED
from forerun.operations import logged, watched
from forerun.options import pin_to_core
from forerun.privacy_options import privacy_from
from forerun.ray_options import options_from
from forerun.verify import check_options, load, worker_of
from forerun.verify_identity import identity

if TYPE_CHECKING:
    from cloud_verifier.core.target import TargetEngine
    from common.rpc.describe import TokenTable

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.25
"""Seconds from one look at whether Ray is taking the replica away to the next."""

MOST_CALLS = 1000
"""At once in one replica. More than a verifier lets in: whom it has no room for it tells so, and when to come
again, where Ray would keep him waiting without a word."""

Load = Callable[[argparse.Namespace], "tuple[TargetEngine, TokenTable]"]


class Verifier(RayFace):
    """One replica."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it, in the event loop that calls come in
        self, options: argparse.Namespace, loading: Load = load
    ) -> None:
        check_options(options)
        pin_to_core(options.core)
        self._stack = contextlib.AsyncExitStack()  # nobody closes it: Ray ends the process
        self._stack.enter_context(logged(options))
        engine, table = loading(options)
        worker = worker_of(options, engine)
        caller, files = identity(options)
        service = VerifierService(
            worker, worker.scheduler.info, table, caller, privacy_from(options), files.get(DENIED)
        )
        super().__init__(service, (RayError,))
        self._heart = await self._stack.enter_async_context(Heart(worker, service, files=files))
        await self._stack.enter_async_context(watched(worker, options))
        self._leaving = asyncio.create_task(self._leave(is_leaving(), options.grace))

    async def check_health(self) -> None:
        """Ray asks, and starts another replica in place of one that raises. A verifier without room is
        healthy: that is for its admission to say."""
        self._heart.check()

    async def _leave(self, leaving: Callable[[], bool], grace: float) -> None:
        """Tell the sessions when Ray takes this replica away. By itself it waits for them to end, in silence,
        and then cuts them."""
        while not leaving():  # noqa: ASYNC110 - Ray sets no event
            await asyncio.sleep(LOOK_EVERY)
        await self._heart.drain(grace)


def is_leaving() -> Callable[[], bool]:
    """Whether Ray is taking this replica away. It tells nobody (2.60), so this looks at its own flag; a
    replica without one is cut off at its end, and its edges go on elsewhere all the same."""
    actor = ray_worker.global_worker.actors.get(ray_worker.global_worker.actor_id)
    replica = getattr(actor, "_replica_impl", None)
    if not hasattr(replica, "_shutting_down"):
        logger.warning("this version of Ray does not show when it stops a replica; sessions will be cut off")
    return lambda: bool(getattr(replica, "_shutting_down", False))


def verifier(args: Mapping[str, Any]) -> Any:
    """The application; Ray wants a function of one argument."""
    return application(args, load)


def application(args: Mapping[str, Any], loading: Load) -> Any:
    """One with another engine. What is set here a configuration of Serve may set otherwise. Raises
    `UserError`."""
    options = options_from(args)
    deployment = serve.deployment(
        Verifier,
        name="Verifier",
        max_ongoing_requests=max(MOST_CALLS, 2 * options.max_sessions),
        graceful_shutdown_timeout_s=1.5 * (options.grace + FLUSH_TIME),
        ray_actor_options={"num_gpus": 1 if options.device.startswith("cuda") else 0},
        request_router_config=RequestRouterConfig(
            request_router_class="cloud_verifier.ray_router.SessionRouter"
        ),
    )
    return deployment.bind(options, loading)
