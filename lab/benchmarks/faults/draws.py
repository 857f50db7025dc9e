"""Draws requests and faults by seed: fault N is the same whichever fault a run begins with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

from lab.benchmarks.stream_forms import FORMS

NUM_SIDES = 2
"""Verifiers, each behind a link of its own."""


class Kind(StrEnum):
    """Names a kind of fault."""

    CLIENT_CUT = "client_cut"  # the connection of a client to the daemon
    RESET = "reset"  # RST on the link to a verifier
    RESET_BOTH = "reset_both"  # on both links at once
    BLACK_HOLE = "black_hole"  # a link that swallows everything for a while
    LOSS = "loss"  # of packets: TCP sends each again after a while, and what follows it waits
    HALF_OPEN = "half_open"  # a link's answers vanish while its connections stay open, and then are reset
    LATENCY = "latency"  # 0 -> 200 ms -> 0
    FREEZE = "freeze"  # SIGSTOP of a verifier, SIGCONT later
    SLEEP = "sleep"  # of the device: SIGSTOP of the daemon, and both links swallow everything until it wakes
    KILL = "kill"  # SIGKILL of a verifier, which is started again
    DRAIN = "drain"  # SIGTERM of a verifier, which is started again
    DAEMON_KILL = "daemon_kill"  # SIGKILL of the daemon, which is started again
    DAEMON_STOP = "daemon_stop"  # SIGTERM
    CLOCK = "clock"  # the daemon's clock of the wall jumps by up to a day, ahead or back
    BROKER = "broker"  # the fleet's MQTT broker is killed, or freezes, and is there again later


WEIGHTS = {
    Kind.CLIENT_CUT: 30,
    Kind.RESET: 25,
    Kind.RESET_BOTH: 12,
    Kind.BLACK_HOLE: 10,
    Kind.LOSS: 10,
    Kind.HALF_OPEN: 6,
    Kind.LATENCY: 12,
    Kind.FREEZE: 6,
    Kind.SLEEP: 3,
    Kind.KILL: 0.7,
    Kind.DRAIN: 0.7,
    Kind.DAEMON_KILL: 2.6,
    Kind.DAEMON_STOP: 1.0,
    Kind.CLOCK: 5,
    Kind.BROKER: 5,
}
"""How often each is drawn, of 129. A verifier's start takes some 10 s of a processor, so few of those."""

RESTARTS = Kind.KILL, Kind.DRAIN, Kind.DAEMON_KILL, Kind.DAEMON_STOP
"""Faults that start a process again. Where that takes long, fewer of them leave time for texts."""

LASTS = {
    Kind.BLACK_HOLE: (0.5, 6.0),
    Kind.LOSS: (0.5, 4.0),
    Kind.HALF_OPEN: (0.5, 6.0),
    Kind.LATENCY: (0.3, 3.0),
    Kind.BROKER: (0.3, 5.0),
    Kind.FREEZE: (0.5, 7.0),
    Kind.SLEEP: (1.0, 9.0),
}
"""Seconds, least and most, until a fault that passes by itself is over."""


@dataclass(frozen=True, slots=True)
class DrawnFault:
    """Holds a fault of a run."""

    number: int
    kind: Kind
    after: float  # seconds since the one before
    side: int  # which verifier or its link
    lasts: float  # seconds, of those that pass by themselves
    victim: float  # in [0, 1): which of the clients


def draw_fault(
    seed: int, number: int, mean_gap: float, weights: dict[Kind, float] | None = None
) -> DrawnFault:
    """Return the fault of this number. Gaps are exponential: some faults overlap. With gaps below a second
    they last for as much less, so that no more overlap."""
    random = Random(f"{seed}/fault/{number}")
    wanted = weights or WEIGHTS
    kind = random.choices(list(wanted), list(wanted.values()))[0]
    least, most = LASTS.get(kind, (0.0, 0.0))
    return DrawnFault(
        number=number,
        kind=kind,
        after=random.expovariate(1.0 / mean_gap),
        side=random.randrange(NUM_SIDES),
        lasts=random.uniform(least, most) * min(1.0, mean_gap),
        victim=random.random(),
    )


@dataclass(frozen=True, slots=True)
class FaultJob:
    """Holds a text to ask for."""

    number: int
    path: str  # of the API
    body: dict[str, Any] = field(hash=False)


STOPS = (["\n\n"], ["return", "raise"], ["self."], ["    )", "import "])


def draw_job(seed: int, number: int, prompts: tuple[str, ...]) -> FaultJob:
    """Draw a job: of any endpoint, greedy or sampled, with or without stops, penalties, logprobs."""
    random = Random(f"{seed}/job/{number}")
    prompt = random.choice(prompts)
    body: dict[str, Any] = {
        "max_tokens": random.randint(30, 120),
        "temperature": random.choice([0, 0, 0.6, 1.0]),
        "seed": random.randrange(2**32),
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": random.random() < 0.7,
        "forerun": {"origins": True},
    }
    if random.random() < 0.3:
        body["stop"] = random.choice(STOPS)
    if random.random() < 0.3:
        body |= {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1}
    if body["temperature"] and random.random() < 0.5:
        body |= {"top_p": 0.9, "top_k": 40}
    messages = [{"role": "user", "content": prompt}]
    match random.choice(tuple(FORMS)):
        case "/v1/chat/completions" as path:
            return FaultJob(number, path, {**body, "messages": messages, "logprobs": random.random() < 0.3})
        case "/v1/completions" as path:
            return FaultJob(number, path, {**body, "prompt": prompt})
        case "/v1/responses" as path:
            more = {"input": messages, "max_output_tokens": body.pop("max_tokens")}
        case "/api/chat" | "/api/generate" as path:
            asked = {"messages": messages} if path == "/api/chat" else {"prompt": prompt}
            return FaultJob(
                number, path, {**asked, "forerun": body.pop("forerun"), "options": _options(body)}
            )
        case path:
            more = {"messages": messages, "stop_sequences": body.pop("stop", [])}
    del body["stream_options"]
    return FaultJob(number, path, {**body, **more})


def _options(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body's sampling as Ollama's options."""
    names = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}
    left_out = ("stream", "stream_options")
    return {names.get(name, name): value for name, value in body.items() if name not in left_out}
