"""Several verifiers as one: which are there, how far they are, and where the streams of a session go.

async with Verifiers(["10.0.0.1:50051", "gpu.example:50051"], vocabulary=own, tls=TlsSettings(ca)) as pool:
    await pool.ready(5.0)
    async for emit in Generation(session, pool.route(key_of(device, prompt)), drafts):
        ...
"""

from edge_client.tls import TlsSettings
from edge_client.verifiers.addresses import VerifierAddress, parse_address
from edge_client.verifiers.pool import Verifiers
from edge_client.verifiers.route import Route
from edge_client.verifiers.status import Health, VerifierStatus

__all__ = [
    "Health",
    "Route",
    "TlsSettings",
    "VerifierAddress",
    "VerifierStatus",
    "Verifiers",
    "parse_address",
]
