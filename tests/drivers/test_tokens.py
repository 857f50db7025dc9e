"""Laws of identity by token: one that does not do is refused and said why, and none is ever told."""

import asyncio
import base64
import hashlib
import hmac
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from cloud_verifier.identity.token_identity import TokenIdentity, TokenRules, live_keys
from cloud_verifier.telemetry.collector import registry
from cloud_verifier.telemetry.snapshot import overview
from common.errors import Code, UserError
from edge_client.core.effects import Fallback
from edge_client.core.policies import make_policy
from edge_client.network.channel import VerifierChannel
from edge_client.network.verifiers import Verifiers
from forerun.commands.dev_certs import TokenKey, as_json
from forerun.commands.verifier_table import as_json as top_json
from forerun.commands.verifier_table import table
from forerun.log_format import FORMATS, writing
from tests.support.call import Call
from tests.support.drafter_thread import DrafterThread
from tests.support.tiny import EOS, generation
from tests.support.town import AUDIENCE, TEXT, Town, opening, refusal, stub_of, write_text
from tests.worlds.models import TinyDrafter, target_alone

pytestmark = pytest.mark.grpc


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path)


async def test_the_tenant_is_the_tokens(town: Town) -> None:
    async with town.by_token() as system:
        assert await write_text(system, town.bearer(town.token())) == target_alone((1, 2, 3), TEXT, EOS)
        async with stub_of(
            system, town.bearer(""), ("authorization", f"bearer {town.token('globex')}")
        ) as begin:
            call = await begin(opening("acme", fill=False))
            await call.read()
            assert [each["tenant"] for each in system.worker.snapshot().sessions] == ["globex"]
            call.cancel()


BAD_TOKENS: dict[str, tuple[Callable[[Town], str], str]] = {
    "none at all": (lambda town: "", "asks for a token"),
    "expired": (lambda town: town.token(exp=int(time.time()) - 31), "has expired"),
    "not yet": (lambda town: town.token(nbf=int(time.time()) + 90), "not valid yet"),
    "for another": (lambda town: town.token(aud="mail"), "audience 'forerun'"),
    "for nobody": (lambda town: town.token(aud=None), "lacks the claim 'aud'"),
    "by another": (lambda town: town.token(iss="x"), "is not from the issuer"),
    "without end": (lambda town: town.token(exp=None), "lacks the claim 'exp'"),
    "too long": (lambda town: town.token(exp=int(time.time()) + 1000), "longer than 900"),
    "no tenant": (lambda town: town.token(None), "lacks the claim 'tenant'"),
    "a number": (lambda town: town.token(7), "names no tenant"),
    "a path": (lambda town: town.token("../acme"), "names no tenant"),
    "another key": (lambda town: _stranger(town), "not signed with a key that this verifier knows"),
    "no signature": (lambda town: _unsigned(town), "not signed with a key"),
    "signed with the public key": (lambda town: _confused(town), "not signed with a key"),
    "noise": (lambda town: "canary.canary.canary", "no JSON Web Token"),
}
DENIED = ("a number", "a path")
"""Of these the signature is right."""


def _stranger(town: Town) -> str:
    """Of somebody with a key of the same name."""
    own, town.tokens = town.tokens, TokenKey.new()
    try:
        return town.token()
    finally:
        town.tokens = own


def _parts(token: str) -> tuple[dict[str, Any], str]:
    header, payload, _ = token.split(".")
    return json.loads(base64.urlsafe_b64decode(header + "==")), payload


def _unsigned(town: Town) -> str:
    _, payload = _parts(town.token())
    return f"{_coded({'alg': 'none', 'typ': 'JWT'})}.{payload}."


def _confused(town: Town) -> str:
    """A MAC whose secret is what everybody knows (RFC 8725 2.1)."""
    _, payload = _parts(town.token())
    x = town.tokens.jwks()["keys"][0]["x"]
    secret = base64.urlsafe_b64decode(x + "==")
    signed = f"{_coded({'alg': 'HS256', 'kid': 'dev'})}.{payload}"
    mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _coded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_a_token_that_does_not_do_is_refused_and_said_why(name: str, town: Town) -> None:
    make, words = BAD_TOKENS[name]
    token = make(town)
    with pytest.raises(UserError, match=words) as refused:
        town.token_identity().who(Call(*([f"Bearer {token}"] if token else [])))
    assert refused.value.code is (Code.PERMISSION_DENIED if name in DENIED else Code.UNAUTHENTICATED)
    assert not token or token not in str(refused.value)


def test_clocks_may_differ_by_the_leeway(town: Town) -> None:
    for claims in ({"exp": int(time.time()) - 20}, {"nbf": int(time.time()) + 20}):
        assert town.token_identity().who(Call(f"Bearer {town.token(**claims)}")).tenant == "acme"


async def test_a_text_may_outlive_its_token_and_no_new_stream_does(town: Town) -> None:
    offset = [0.0]
    keys, rules = live_keys(town.folder / "keys.json"), TokenRules(AUDIENCE)
    identity = TokenIdentity(keys, rules, wall=lambda: time.time() + offset[0])
    async with town.by_token(identity, step_time=0.002) as system:
        tls = town.bearer(town.token())
        async with VerifierChannel(system.address, tls=tls) as channel:
            run = generation(channel, None, TEXT, make_policy("off"))
            pieces = aiter(run)
            await anext(pieces)
            offset[0] = 331.0
            with pytest.raises(UserError, match="the token has expired"):
                await channel.describe()
            async for _ in pieces:
                pass
            assert run.session.text == target_alone((1, 2, 3), TEXT, EOS)
            offset[0] = 0.0
            assert tls.token_file is not None
            town.put(tls.token_file.name, town.token("globex", exp=int(time.time()) + 600).encode())
            assert (await channel.describe()).model == "tiny", "the new file is read without a restart"


async def test_keys_are_rotated_without_a_restart(town: Town) -> None:
    """The new key beside the old one first, then the old one goes, and with it the tokens that it signed."""
    old = town.bearer(town.token())
    second = TokenKey.new()
    entry = {**second.jwks()["keys"][0], "kid": "second"}
    async with town.by_token() as system:
        assert await write_text(system, old)
        town.put("keys.json", as_json({"keys": [*town.tokens.jwks()["keys"], entry]}))
        assert await write_text(system, old)
        town.put("keys.json", as_json({"keys": [entry]}))
        assert "not signed with a key that this verifier knows" in str(await refusal(system, old))
        town.put("keys.json", b"canary")
        assert "not signed with a key that this verifier knows" in str(await refusal(system, old))


@pytest.mark.parametrize("fallback", Fallback)
async def test_a_text_fails_with_the_sentence_whatever_the_fallback_and_the_next_has_the_new_token(
    fallback: Fallback, town: Town
) -> None:
    """A fallback is for verifiers that are not there. This one is, and its owner can be helped."""
    tls = town.bearer(town.token(exp=int(time.time()) - 60))
    async with town.by_token() as system, Verifiers([system.address], tls=tls) as pool, asyncio.timeout(20):
        with DrafterThread(TinyDrafter()) as drafts:
            run = generation(pool.route("s"), drafts, TEXT, fallback=fallback, patience=10.0)
            with pytest.raises(UserError, match="the token has expired"):
                async for _ in run:
                    pass
            assert tls.token_file is not None
            town.put(tls.token_file.name, town.token().encode())
            run = generation(pool.route("t"), drafts, TEXT)
            async for _ in run:
                pass
    assert run.session.text == target_alone((1, 2, 3), TEXT, EOS)


@pytest.mark.parametrize("style", FORMATS)
async def test_no_log_metric_or_view_shows_a_token_a_key_or_a_certificate(style: str, town: Town) -> None:
    """At the most talkative level, of calls that are let in and of those that are not."""
    log = io.StringIO()
    good = town.bearer(town.token())
    bad = [make(town) for make, _ in BAD_TOKENS.values()]
    secrets = [town.folder.joinpath(name).read_text() for name in ("tls.crt", "tls.key", "ca.crt")]
    secrets = [line for text in secrets for line in text.splitlines() if not line.startswith("-----")]
    with writing("debug", style, log):
        async with town.by_token(step_time=0.002) as system:
            for token in filter(None, bad):
                await refusal(system, town.bearer(token))
            await write_text(system, good)
            town.put("keys.json", as_json({"keys": [{"kty": "oct", "k": "Y2FuYXJ5LWNhbmFyeQ"}]}))
            town.put("tls.key", b"canary-key")
            system.server.lifecycle.look()
            async with stub_of(system, good, ("authorization", f"Bearer {town.token('acme')}")) as begin:
                call = await begin(opening(fill=False))
                await call.read()
                seen = system.worker.snapshot()
                call.cancel()
    told = {
        "log": log.getvalue(),
        "metrics": generate_latest(registry(seen)).decode(),
        "table": "\n".join(table(overview(seen))),
        "json": json.dumps(top_json(overview(seen))),
    }
    assert good.token_file is not None
    words = [good.token_file.read_text(), *filter(None, bad)]
    parts = [part for token in words for part in token.split(".") if len(part) > 8]
    for name, text in told.items():
        assert text, name
        assert not [part for part in (*parts, *secrets) if part in text], name
        assert "canary" not in text, name
        assert "Y2FuYXJ5" not in text, name
    assert "UNAUTHENTICATED" in told["log"]
    assert "the token has expired" in told["log"], "an operator sees why edges are turned away"
    assert 'forerun_failed_file_reloads_total{file="token_keys"} 1.0' in told["metrics"]
    assert 'forerun_failed_file_reloads_total{file="certificate"} 1.0' in told["metrics"]
