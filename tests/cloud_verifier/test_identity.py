"""Laws of who a caller is, where that needs no wire; tests/drivers/test_identity.py has those that do."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_verifier.identity import HeaderIdentity, Who
from common.errors import Code, UserError

pytestmark = pytest.mark.grpc  # `grpc` has the certificates' half of the module


class _Entries:
    """A call as gRPC shows it."""

    def __init__(self, *values: str) -> None:
        self._values = values

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "x"), *(("x-tenant", value) for value in self._values))


def call(*values: str) -> Any:
    """One with these in the proxy's header."""
    return _Entries(*values)


def test_the_proxys_header_is_the_tenant() -> None:
    identity = HeaderIdentity("x-tenant")
    assert identity.who(call("acme")) == Who("acme")
    assert identity.who(call()) == Who(), "behind a proxy that does not set it all are one"


def test_a_header_that_a_client_has_set_beside_the_proxys_is_refused() -> None:
    """A proxy that adds its own and leaves the client's there would let the client choose."""
    for values in (("acme", "globex"), ("globex", "acme"), ("acme", "acme")):
        with pytest.raises(UserError, match="x-tenant comes 2 times: the proxy in front must") as found:
            HeaderIdentity("x-tenant").who(call(*values))
        assert found.value.code is Code.UNAUTHENTICATED


def test_marks_are_what_is_known() -> None:
    assert [*Who("acme", serial="1f").marks()] == [("tenant", "acme"), ("serial", "1f")]
    assert [*Who().marks()] == []
