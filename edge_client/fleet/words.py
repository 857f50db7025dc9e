"""What a broker's refusal or silence means, in words for the person at the device."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

from common.errors import UnavailableError
from edge_client.fleet.settings import BrokerSettings

TAKEN_OVER = 0x8E
"""MQTT 5, 2.4: another client connected with our client id."""

REASONS = {
    0x84: "it does not speak MQTT 5",
    0x85: "it does not take this client id; with certificates it must be the common name",
    0x86: "it does not know this user name or password",
    0x87: "it does not let this client in (not authorized): check its user name or certificate",
    0x88: "it is not available now",
    0x89: "it is busy",
    0x8A: "it has banned this client",
    0x8B: "it is shutting down",
    0x8D: "it heard nothing of this client for one and a half keepalive intervals",
    TAKEN_OVER: "another process connected with this device's name; each device needs a name of its own, and "
    "one daemon",
    0x93: "more messages were on the way than it allows",
    0x95: "a message was larger than it allows",
    0x97: "its quota for this client is used up",
    0x98: "an administrator of it ended the connection",
}
"""MQTT 5 reason codes from 0x80 on."""


class BrokerError(UnavailableError):
    """The connection cannot be made, or is over. `reason` is MQTT's code, if one came."""

    def __init__(self, message: str, reason: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def taken_over(self) -> bool:
        """Whether another process has our name."""
        return self.reason == TAKEN_OVER


class DeniedError(UnavailableError):
    """The broker took a message and said that this client may not send it there."""

    def __init__(self, message: str, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


def by_reason(broker: BrokerSettings, reason: int) -> BrokerError:
    """The broker said why."""
    words = REASONS.get(reason, f"it gave the MQTT reason 0x{reason:02x}")
    return BrokerError(f"the broker {broker} ended the connection: {words}", reason)


def by_cause(broker: BrokerSettings, error: BaseException | None, connecting: bool) -> BrokerError:
    """The network or the library said why, somewhere along the chain of causes."""
    begun = f"the broker {broker} cannot be reached" if connecting else f"the broker {broker} was lost"
    for cause in _chain(error):
        words = _words(broker, cause)
        if words:
            return BrokerError(f"{begun}: {words}")
    if broker.tls and connecting and broker.certificate is None:
        return BrokerError(f"{begun}: it ended the connection without a word; {_CERTIFICATE}")
    if connecting:
        return BrokerError(f"{begun}: it gave no answer within {broker.timeout:g} s; {_PROTOCOL}")
    return BrokerError(f"{begun}: it closed the connection")


_CERTIFICATE = "is a client certificate required? Give one with its key"
_PROTOCOL = "is it an MQTT broker, and is TLS on at both ends or at neither?"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _words(broker: BrokerSettings, error: BaseException) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted ({error.verify_message}); give the CA that signed it, and "
                "the host name that it is made for"
            )
        case ssl.SSLError() if "CERTIFICATE_REQUIRED" in str(error).upper().replace(" ", "_"):
            return "it asks for a client certificate (certificate required); give one with its key"
        case ssl.SSLError():
            certificate = f"; {_CERTIFICATE}" if broker.certificate is None else ""
            return f"TLS failed ({error.reason or 'no reason given'}); is TLS on at both ends?{certificate}"
        case socket.gaierror():
            return f"there is no host {broker.host!r} here"
        case ConnectionRefusedError():
            return "nothing listens there (connection refused)"
        case TimeoutError():
            return f"it gave no answer within {broker.timeout:g} s"
        case ConnectionError() if broker.tls and broker.certificate is None:
            return f"it cut the connection; is TLS on at both ends? If so, {_CERTIFICATE}"
        case OSError() if error.strerror or error.args:
            return str(error.strerror or error)
        case _:
            return ""
