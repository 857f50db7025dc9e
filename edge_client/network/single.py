"""The only verifier of a command without the daemon. It is asked once what it serves."""

from __future__ import annotations

from common.errors import Code, ForerunError, UserError
from common.vocabulary import Vocabulary
from common.wire.describe import Description
from edge_client.core.verifier_choice import DraftSkill
from edge_client.network.addresses import parse_address
from edge_client.network.channel import StreamSource, VerifierChannel
from edge_client.network.client_tls import TlsSettings


class SingleVerifier:
    """Chooses the only verifier, without background probes. An async context manager, a `VerifierChoice`.

    Raises `UserError` for an invalid address, or one of another machine without `tls` or `insecure`.
    """

    def __init__(self, address: str, *, tls: TlsSettings | None = None, insecure: bool = False) -> None:
        parse_address(address, encrypted=tls is not None, insecure=insecure)
        self._channel = VerifierChannel(address, tls=tls)
        self._description: Description | None = None

    async def __aenter__(self) -> SingleVerifier:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.__aexit__()

    async def ask(self, vocabulary: Vocabulary) -> None:
        """Ask what the verifier serves. Raises `UserError` if its tokens differ from `vocabulary`."""
        description = await self._channel.describe()
        if description.fingerprint != vocabulary.fingerprint:
            raise UserError(await self._channel.explain_mismatch(vocabulary), Code.FAILED_PRECONDITION)
        self._description = description
        if self._channel.shares_machine:  # or a tunnel does: a second answer shows the round trip
            await self._channel.describe()

    def route(self, key: str, skill: DraftSkill, target: str) -> StreamSource:
        return self._channel

    async def heard(self, patience: float) -> None:
        """Return at once: `ask` has asked the verifier before."""

    def refusal(self) -> ForerunError | None:
        return None

    def best(self) -> Description | None:
        return self._description
