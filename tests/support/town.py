"""A CA, an issuer of tokens, verifiers that know their callers, and edges of several tenants."""

import contextlib
import datetime
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cloud_verifier.identity.identity import CertificateIdentity
from cloud_verifier.identity.server_tls import ServerTls
from cloud_verifier.identity.token_identity import TokenIdentity, TokenRules, live_keys
from cloud_verifier.telemetry.monitor import TOKEN_KEYS
from common.errors import UserError
from common.messages import Commit, Open, ServerMessage
from common.sampling import SamplingParams
from common.wire.codec import decode_response, encode_request
from common.wire.service import VerifierStub
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from edge_client.network.client_tls import TlsSettings
from forerun.commands.dev_certs import Authority, TokenKey, as_json, spiffe_id
from tests.support.tiny import VOCABULARY, System, generation, running

TEXT = SamplingParams(max_tokens=16, ignore_eos=True)
DOMAIN = "example.org"
AUDIENCE, ISSUER = "forerun", "https://issuer.example"


@dataclass
class Town:
    """A CA, an issuer of tokens, a verifier's files, and edges of several tenants."""

    folder: Path
    authority: Authority = field(default_factory=lambda: Authority(datetime.timedelta(days=1)))
    tokens: TokenKey = field(default_factory=TokenKey.new)

    def __post_init__(self) -> None:
        pair = self.authority.server(["127.0.0.1"])
        for name, content in (("ca.crt", self.authority.pem), ("tls.crt", pair.cert), ("tls.key", pair.key)):
            self.put(name, content)
        self.put("keys.json", as_json(self.tokens.jwks()))

    def put(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        new = self.folder / f"{name}.new"
        new.write_bytes(content)
        new.replace(path)
        return path

    def server_tls(self, clients: bool) -> ServerTls:
        cert, key, ca = (self.folder / name for name in ("tls.crt", "tls.key", "ca.crt"))
        return ServerTls(cert, key, ca if clients else None)

    def device(self, *uris: str, end: datetime.datetime | None = None) -> TlsSettings:
        """An edge with a certificate that says this."""
        pair = self.authority.client(uris, end)
        name = f"device-{time.monotonic_ns()}"
        cert, key = self.put(f"{name}.crt", pair.cert), self.put(f"{name}.key", pair.key)
        return TlsSettings(self.folder / "ca.crt", cert, key)

    def of(self, tenant: str) -> TlsSettings:
        return self.device(spiffe_id(DOMAIN, tenant, "d1"))

    def token(self, tenant: object = "acme", **claims: object) -> str:
        """`None` for a claim leaves it out."""
        now = int(time.time())
        whole = {"aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + 300, "tenant": tenant, **claims}
        return self.tokens.sign({name: value for name, value in whole.items() if value is not None})

    def bearer(self, token: str) -> TlsSettings:
        """An edge with this token."""
        path = self.put(f"token-{time.monotonic_ns()}", token.encode())
        return TlsSettings(self.folder / "ca.crt", token_file=path)

    def token_identity(self, **rules: Any) -> TokenIdentity:
        return TokenIdentity(live_keys(self.folder / "keys.json"), TokenRules(AUDIENCE, ISSUER, **rules))

    def by_certificate(self, domain: str = "", **more: Any) -> contextlib.AbstractAsyncContextManager[System]:
        return running(identity=CertificateIdentity(domain), tls=self.server_tls(clients=True), **more)

    def by_token(
        self, identity: TokenIdentity | None = None, **more: Any
    ) -> contextlib.AbstractAsyncContextManager[System]:
        identity = identity or self.token_identity()
        files, tls = {TOKEN_KEYS: identity.keys}, self.server_tls(clients=False)
        return running(identity=identity, tls=tls, files=files, **more)


async def write_text(system: System, tls: TlsSettings, streams: list[int] | None = None) -> tuple[int, ...]:
    """Also adds how many `streams` it took: gRPC's client may lose the end that it was told."""
    async with VerifierChannel(system.address, tls=tls) as channel:
        run = generation(channel, None, TEXT, make_policy("off"))
        try:
            async for _ in run:
                pass
        finally:
            if streams is not None:
                streams.append(1 + run.stats.resumes)
    return run.session.text


async def refusal(system: System, tls: TlsSettings, streams: list[int] | None = None) -> UserError:
    """Of a question and of a text: the same."""
    async with VerifierChannel(system.address, tls=tls) as channel:
        with pytest.raises(UserError) as asked:
            await channel.describe()
    with pytest.raises(UserError) as opened:
        await write_text(system, tls, streams)
    assert (str(asked.value), asked.value.code) == (str(opened.value), opened.value.code)
    return opened.value


def opening(session_id: str = "job-7", committed: tuple[int, ...] = (), **fields: Any) -> Open:
    request = Open((1, 2, 3), TEXT, VOCABULARY.fingerprint, committed=committed, session_id=session_id)
    return replace(request, **fields)


@contextlib.asynccontextmanager
async def stub_of(
    system: System, tls: TlsSettings, *metadata: tuple[str, str]
) -> AsyncIterator[Callable[[Open], Any]]:
    """Begins streams of an edge that is not ours, and says what it likes. One that has been refused before it
    said anything tells so where it is read."""
    async with grpc.aio.secure_channel(system.address, tls.credentials()) as channel:
        stub = VerifierStub(channel)

        async def begin(request: Open) -> Any:
            call = stub.Session(metadata=metadata)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.write(encode_request(request))
            return call

        yield begin


async def answers(call: Any) -> list[ServerMessage]:
    return [decode_response(each) async for each in call]


def text_of(messages: list[ServerMessage]) -> tuple[int, ...]:
    return tuple(token for each in messages if isinstance(each, Commit) for token in each.tokens)
