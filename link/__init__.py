"""A link with faults: a TCP proxy that makes loopback behave like a distant, slow or failing network.

A client connects to the link instead of to the server; the link passes bytes on, late, slowly, or not at all.
What is wrong with it is a set of *toxics*, in the words and units of toxiproxy (ms, KB/s), each on one
direction (*upstream*, client to server, or *downstream*). It needs no root and works under anything that
speaks TCP.

    from link import Bandwidth, Link, Stream, Timeout, rtt

    async with Link.to("127.0.0.1:50051", *rtt(60, jitter=10), seed=7) as link:
        client = connect(str(link.address))                      # a round trip now takes 60 +- 10 ms more
        link.set_toxic(Bandwidth(200, stream=Stream.UPSTREAM))   # 200 KB/s for what the client sends
        link.update_toxic("bandwidth_upstream", rate=50)
        link.add_toxic(Timeout(0, name="tunnel"))                # nothing comes back any more ...
        link.remove_toxic("tunnel")                              # ... and now it does, nothing lost
        await link.disable()                                     # new connections are refused
        link.cut()                                               # open ones are reset
        await link.enable()
        link.rtt(200)
        print(link.counters)

What is promised: bytes arrive in order and unchanged, and what has arrived is always a prefix of what was
sent; latency delays each chunk without limiting how many are on their way; a lane's memory is bounded, and a
full lane slows its sender down; the same seed and the same chunks give the same delays. What is not: packets
(there is no loss or reordering, which TCP would hide), and the handshake (a connection is accepted at once,
the delays begin after it).

The parts, from the pure to the driver: `toxics` (what can be wrong), `lane` (when a chunk leaves),
`settings`, `alarm` (a sharp timer), `side` and `connection` (sockets), `proxy` (the link), `script` (timed
changes), `cli`.
"""

from link.errors import LinkError, LinkStateError, ScriptError, SettingsError, UnknownToxicError
from link.proxy import Counters, Link
from link.script import Change, parse_script, play
from link.settings import Address, LinkSettings
from link.toxics import (
    Bandwidth,
    Latency,
    LimitData,
    ResetPeer,
    SlowClose,
    Stream,
    Timeout,
    Toxic,
    both_ways,
    rtt,
    toxic_from_json,
    toxic_to_json,
)

__all__ = [
    "Address",
    "Bandwidth",
    "Change",
    "Counters",
    "Latency",
    "LimitData",
    "Link",
    "LinkError",
    "LinkSettings",
    "LinkStateError",
    "ResetPeer",
    "ScriptError",
    "SettingsError",
    "SlowClose",
    "Stream",
    "Timeout",
    "Toxic",
    "UnknownToxicError",
    "both_ways",
    "parse_script",
    "play",
    "rtt",
    "toxic_from_json",
    "toxic_to_json",
]
