"""Book the verdicts of an engine that decides its own steps.

Sans-IO, as `VerifyScheduler`. Admission, drafts, commits, credits, timeouts and ends are those of that class.
Only the step is another: the engine evaluates what it likes, and its tokens come in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cloud_verifier.core.admission import ANYBODY, Caller
from cloud_verifier.core.batching import NOBODY_SPARED
from cloud_verifier.core.engine_protocol import StepPlan, StepResult, TargetInfo
from cloud_verifier.core.ledger import Running
from cloud_verifier.core.limits import SchedulerConfig
from cloud_verifier.core.scheduler import VerifyScheduler
from common.errors import UserError
from common.messages import Open

Refuse = Callable[[Open], None]
"""Raises `UserError` for a session that the engine cannot serve."""


class RequestScheduler(VerifyScheduler):
    """Drives sessions that are requests of another engine.

    The driver calls `on_tokens` with the engine's tokens. It never gets a step: `next_step` returns None. KV
    slots are numbers here that bound what is admitted at once. A session reserves its longest text, so that
    the engine need not take memory back.

    Args: info; config, of which the fields about steps have no effect; refuse.
    """

    def __init__(self, info: TargetInfo, config: SchedulerConfig, refuse: Refuse) -> None:
        super().__init__(info, config)
        self._refuse_open = refuse

    def check(self, request: Open, now: float, caller: Caller = ANYBODY) -> None:
        if request.logprobs is not None:
            raise UserError("this verifier gives no log-probabilities; leave logprobs out")
        self._refuse_open(request)
        super().check(request, now, caller)

    def next_step(self, now: float) -> StepPlan | None:
        """Return None. The engine runs its own steps."""
        return None

    def on_tokens(self, key: int, tokens: Sequence[int], now: float) -> None:
        """Commit the tokens that the engine wrote in one step of a session. The rest of a text that has ended
        is ignored."""
        session = self.sessions.get(key)
        if session is None or not tokens:
            return
        chunk, nodes = session.num_prefill, [session.tree.tip]
        for token in tokens[:-1]:  # evaluated nodes; where the edge had proposed none, the engine had guessed
            child = nodes[-1].children.get(token)
            tree = session.tree
            nodes.append(tree.grow(nodes[-1], token, 0.0) if child is None else tree.live[child])
        session.plan(chunk, nodes, self.memory)
        num_rows = chunk + len(nodes)
        self._steps.running = Running({key: session}, session.ready_at, num_rows, 0, chunk, NOBODY_SPARED)
        margins = np.full(len(tokens), np.inf, np.float32)  # the engine does not say them
        self.on_step_done(StepResult((np.array(tokens, np.int32),), (margins,)), now)
