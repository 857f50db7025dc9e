"""Defines networks by name: links between a device and a server of its own region, in measured figures.

Each figure has its source beside it, by a name from the list below; "typical" marks our choice of a usual
value. The round trip leaves out the distance to a server farther away: `rtt_ms` of a world replaces it.

Conversion of figures: jitter is a standard deviation one way, that of a measured round trip (its slowest
percent set to the 99th percentile) over the square root of 2; memory is what the correlation of successive
round trips implies. A link's draws are normal and its losses independent, while real delays have longer tails
and real losses come in bursts: where that matters, replay a trace.

wpt         WebPageTest, www/settings/connectivity.ini.sample: access lines for tests of pages; a convention
devtools    Firefox, devtools/client/shared/components/throttling/profiles.js; a convention, too
mrm         Zenodo 14967644 (uncore-team/marginal_rtt_modeling): 40,000 round trips of 1 KB over a Wi-Fi
            repeater and a home's fibre, and as many from a 4G phone; both contain the servers' own time
telstra     WizardTim/speedtest-data: 23,654 half-hourly tests of a home's cable line in Brisbane
raca        Raca, Leahy, Sreenan and Quinlan, MMSys 2020 (uccmisl/5Gdataset): phones standing and driving
kottkamp    Kottkamp, 5G NR and LTE latency analysis in a public network, Rohde & Schwarz 2022: delays one
            way, around Munich
pei         Pei et al., WiFi can be the weakest link of round trip network latency in the wild, INFOCOM 2016:
            47 access points of a campus
apnic22     Fact checking Starlink's performance figures, blog.apnic.net, 28 November 2022: from Belgium
huston22    Huston, Testing LEO and GEO satellite services in Australia, blog.apnic.net, 2 May 2022
huston24    Huston, A transport protocol's view of Starlink, blog.apnic.net, 17 May 2024
"""

from __future__ import annotations

from typing import Final

from common.errors import UserError
from simulator.link_spec import Handovers, LinkSpec


def _link(
    rtt_ms: float,
    jitter_ms: float,
    memory_ms: float,
    loss: float,
    up_mbps: float,
    down_mbps: float,
    handovers: Handovers | None = None,
) -> LinkSpec:
    mbit = 125_000.0  # bytes
    return LinkSpec(
        rtt=rtt_ms / 1e3,
        jitter=jitter_ms / 1e3,
        jitter_memory=memory_ms / 1e3,
        loss=loss,
        bandwidth_up=up_mbps * mbit,
        bandwidth_down=down_mbps * mbit,
        handovers=handovers,
    )


PROFILES: Final[dict[str, LinkSpec]] = {
    "lan": _link(
        rtt_ms=0.5,  # typical
        jitter_ms=0.1,  # typical
        memory_ms=0,  # typical
        loss=0,  # typical
        up_mbps=1000,  # what Gigabit Ethernet means
        down_mbps=1000,
    ),
    "fibre": _link(
        rtt_ms=4,  # wpt, "FIOS"
        jitter_ms=0.5,  # typical
        memory_ms=0,  # typical
        loss=0,  # typical
        up_mbps=5,  # wpt, "FIOS"
        down_mbps=20,
    ),
    "cable": _link(
        rtt_ms=17,  # telstra: median 16.9
        jitter_ms=1.9,  # telstra: over 18 months; within minutes typical
        memory_ms=0,  # typical
        loss=0.00004,  # telstra: mean 4.2e-5
        up_mbps=5,  # telstra: median 4.95
        down_mbps=48,  # telstra: median 48.1
    ),
    "wifi": _link(
        rtt_ms=10,  # devtools, "Wi-Fi": 2; the fibre behind it: 4; mrm: median 4 above the 5th percentile
        jitter_ms=4.6,  # mrm: 6.5 of the round trip
        memory_ms=50,  # mrm: ranks of round trips 56 ms apart correlate by 0.33
        loss=0,  # typical: 802.11 repeats what is lost
        up_mbps=15,  # devtools, "Wi-Fi"
        down_mbps=30,
    ),
    "lte": _link(
        rtt_ms=70,  # wpt, "LTE"; raca: median 87.5 to a server 65 away
        jitter_ms=5.2,  # mrm: 7.4 of the round trip
        memory_ms=0,  # mrm: round trips 119 ms apart correlate by 0.04
        loss=0,  # typical: the radio link repeats what is lost
        up_mbps=12,  # wpt, "LTE"
        down_mbps=12,
    ),
    "5g": _link(
        rtt_ms=25,  # kottkamp: 7 down (best case) and 18 up (worst case)
        jitter_ms=1.4,  # raca: median deviation of 2 within a series of pings, standing still
        memory_ms=0,  # typical
        loss=0,  # typical; raca: 2 % of pings, in bursts
        up_mbps=15,  # kottkamp: the fastest of the streams tested
        down_mbps=42,  # raca: median 42 standing still
    ),
    "starlink": _link(
        rtt_ms=50,  # apnic22: median
        jitter_ms=4.2,  # huston24: successive round trips differ by 6.7 on average, 5.9 of the round trip
        memory_ms=0,  # as the conversion of that figure supposes
        loss=0.01,  # huston24: 1 to 2 % without congestion
        up_mbps=15,  # typical
        down_mbps=150,  # apnic22: 100 to 200 are promised
        handovers=Handovers(
            every=15.0,  # huston24
            duration=0.050,  # huston24: round trips are 30 to 50 ms longer; as a loss it costs more than that
            rtt_step=0.020,  # apnic22: quartiles of 40 and 60 ms
        ),
    ),
    "geo-satellite": _link(
        rtt_ms=600,  # huston22
        jitter_ms=15,  # typical
        memory_ms=0,  # typical
        loss=0.001,  # typical
        up_mbps=10,  # apnic22: what the geostationary subscription promised
        down_mbps=100,
    ),
    "lossy-wifi": _link(
        rtt_ms=24,  # pei: half of all packets wait more than 20 for the radio; the fibre behind it: 4
        jitter_ms=20,  # typical; pei: a tenth wait more than 100
        memory_ms=50,  # as wifi
        loss=0.02,  # typical
        up_mbps=15,  # as wifi
        down_mbps=30,
    ),
}


def profile(name: str) -> LinkSpec:
    """Return the link of that name. Raises `UserError` that lists the names."""
    if name not in PROFILES:
        raise UserError(f"there is no network profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]
