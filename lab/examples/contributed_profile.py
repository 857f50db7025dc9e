"""An example of a link profile: a row of `PROFILES` in simulator/profiles.py, whose link a world names.

    [link]
    profile = "metro"

Each figure has its source beside it; "typical" marks a choice. This network is invented.
"""

from __future__ import annotations

from simulator.link_spec import LinkSpec

METRO = LinkSpec(
    rtt=0.012,  # seconds; typical: fibre to a region 600 km away
    jitter=0.001,  # seconds one way, standard deviation; typical
    jitter_memory=0.0,  # seconds; typical
    loss=0.0005,  # share of packets; typical
    bandwidth_up=5e6,  # bytes a second; typical: 40 Mbit/s
    bandwidth_down=2e7,  # bytes a second; typical: 160 Mbit/s
)
