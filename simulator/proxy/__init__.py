"""Provides a link with faults: a TCP proxy that makes loopback a distant, slow or failing network.

A client connects to the link instead of to the server; the link passes bytes on, late, slowly, or not at all.
Its faults are a set of *toxics*, in the words and units of toxiproxy (ms, KB/s), each on one
direction (*upstream*, client to server, or *downstream*). It needs no root and works under anything that
speaks TCP.

    from simulator.proxy import Bandwidth, Hold, Link, LinkDirection, rtt

    async with Link.to("127.0.0.1:50051", *rtt(60, jitter=10), seed=7) as link:
        client = connect(str(link.address))                      # a round trip now takes 60 +- 10 ms more
        link.set_toxic(Bandwidth(200, stream=LinkDirection.UPSTREAM))  # 200 KB/s for what the client sends
        link.add_toxic(Hold(name="tunnel"))                      # nothing comes back any more ...
        link.remove_toxic("tunnel")                              # ... and now it does, nothing lost
        await link.disable()                                     # new connections are refused
        link.cut()                                               # open ones are reset
        await link.enable()
        link.rtt(200)
        print(link.counters)

Promised: bytes arrive in order and unchanged, and what has arrived is always a prefix of what was
sent; latency delays each chunk without limiting how many are on their way; a lane's memory is bounded, and a
full lane slows its sender down; the same seed and the same chunks give the same delays. Not promised: packets
(there is no loss or reordering, which TCP would hide), and the handshake (a connection is accepted at once,
the delays begin after it).

The parts, from the pure to the driver: `toxics` (possible faults), `lane` (when a chunk leaves),
`connection` (sockets and a sharp timer), `fault_link` (the proxy), `cli`.
"""

from simulator.proxy.fault_link import Link
from simulator.proxy.toxics import Bandwidth, Hold, LinkDirection, Toxic, both_ways, rtt

__all__ = ["Bandwidth", "Hold", "Link", "LinkDirection", "Toxic", "both_ways", "rtt"]
