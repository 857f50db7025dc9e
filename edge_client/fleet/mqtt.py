"""One connection to an MQTT 5 broker: aiomqtt, without what it hides.

What aiomqtt 2.5.1 and paho 2.2.0 do, and what is done here instead:
- a publish that the broker's ACL denies raises nothing: the PUBACK's reason code is looked at;
- a full inbox drops messages that were acknowledged: there is none, messages go to `on_message` at once;
- a flood would keep the event loop busy: reading pauses, and the broker and TCP hold the rest;
- a packet may have 256 MB, and unfinished ones pile up: beyond our limits the connection ends;
- a TLS alert after the handshake is a time-out 10 s later: the attempt ends at once, with its cause;
- what wants to write is watched a turn of the loop later, by the number of its file, which may then be
  another's: the socket itself is looked at.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Callable
from typing import Any, Self

import aiomqtt
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from common.errors import LocalError
from edge_client.core.fleet.record import MAX_PAYLOAD
from edge_client.fleet.settings import BrokerSettings
from edge_client.fleet.words import BrokerError, DeniedError, by_cause, by_reason

OnMessage = Callable[[str, bytes], None]
"""(topic, payload). Called on the event loop; must not raise or wait."""

MAX_PACKET = 2 * MAX_PAYLOAD
"""Bytes: a payload, its topic and MQTT's own."""

MAX_UNFINISHED = 64
"""Packets of QoS 2 that a broker may leave half told; we ask for none."""

MAX_UNSENT = 1024
"""Packets that wait for a broker that does not read: acknowledgements, mostly."""

FLOODED_PATIENCE = 12
"""Times the ordinary wait for an answer, while other messages come: it stands behind them in the stream."""

READ_AT_ONCE = 16
"""Packets between two looks at the other tasks of the event loop."""

quiet = logging.getLogger(f"{__name__}.library")
quiet.setLevel(logging.CRITICAL)  # it logs every lost connection as an error; ours says it once, in words


class Throttle:
    """A token bucket: how long reading must pause after each message. Monotonic seconds."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._left, self._at = float(burst), 0.0
        self.num_pauses = 0

    def on_message(self, now: float) -> float:
        """Seconds to pause; 0 to read on."""
        self._left = min(self.burst, self._left + (now - self._at) * self.rate) - 1
        self._at = now
        if self._left >= 0:
            return 0.0
        self.num_pauses += 1
        return max(0.05, -self._left / self.rate)


class _Client(aiomqtt.Client):
    """aiomqtt's, with its own reader."""

    def __init__(self, on_message: OnMessage, throttle: Throttle, **options: Any) -> None:
        super().__init__(protocol=aiomqtt.ProtocolVersion.V5, logger=quiet, **options)
        self._hand_over, self._throttle = on_message, throttle
        self._paho.connect_timeout = self.timeout
        self._receive = self._paho._sock_recv
        self._paho._sock_recv = self._guarded_receive
        self._paho._ssl_wrap_socket = self._wrap
        self._pause = 0.0
        self.answers = dict[int, asyncio.Future[ReasonCode]]()
        self.failure: Exception | None = None
        self.reason: int | None = None
        self.abandoned = False
        self.heard_at = 0.0  # the last message, monotonic
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is; aiomqtt's own is replaced when the end comes with the beginning."""

    @property
    def _paho(self) -> Any:
        """With its inside, which has no types."""
        return self._client

    def _wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """As paho does it, in its thread; paho leaves the socket open when the handshake fails."""
        context: ssl.SSLContext = self._paho._ssl_context
        wrapped = context.wrap_socket(sock, server_hostname=self._hostname, do_handshake_on_connect=False)
        try:
            wrapped.settimeout(self.timeout)
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _guarded_receive(self, size: int) -> bytes:
        paho = self._paho
        if paho._in_packet["remaining_length"] > MAX_PACKET:
            self.failure = ConnectionAbortedError("it sends messages larger than this client allows")
        elif len(paho._in_messages) > MAX_UNFINISHED:
            self.failure = ConnectionAbortedError("it begins messages and does not finish them")
        elif len(paho._out_packet) > MAX_UNSENT:
            self.failure = ConnectionAbortedError("it sends and does not read")
        else:
            return self._received(size)
        raise self.failure

    def _received(self, size: int) -> bytes:
        try:
            found: bytes = self._receive(size)
        except BlockingIOError:
            raise
        except OSError as error:
            self.failure = error
            raise
        return found

    def close_socket(self) -> None:
        """Without a word to the broker."""
        self._paho._sock_close()

    # aiomqtt's hooks of paho

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        self._loop.call_soon_threadsafe(self._begin, sock)  # paho connects in a thread

    def _begin(self, sock: Any) -> None:
        if self.abandoned:
            self.close_socket()
            return
        self._misc_task = self._loop.create_task(self._misc_loop())
        self._resume(sock)

    def _resume(self, sock: Any) -> None:
        if sock is self._paho._sock and sock.fileno() >= 0:
            self._loop.add_reader(sock.fileno(), self._read, sock)
            self._read(sock)

    def _read(self, sock: Any) -> None:
        """A few packets; again at once if TLS has decoded more, after a pause if there were too many."""
        for _ in range(READ_AT_ONCE):
            try:
                code = self._paho.loop_read()
            except Exception as error:  # noqa: BLE001  # paho's parser, on bytes of a stranger
                self._fail(error)
                return
            if code != MQTTErrorCode.MQTT_ERR_SUCCESS or self._paho._sock is not sock:
                return
            if self._pause:
                self._loop.remove_reader(sock.fileno())
                self._loop.call_later(self._pause, self._resume, sock)
                self._pause = 0.0
                return
            if not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
                return
        self._loop.call_soon(self._resume, sock)

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        self._loop.call_soon_threadsafe(self._await_room, sock)  # in paho's thread at first

    def _await_room(self, sock: Any) -> None:
        if sock is self._paho._sock and sock.fileno() >= 0 and self._paho._registered_write:
            self._loop.add_writer(sock.fileno(), self._write, sock)

    def _write(self, sock: Any) -> None:
        try:
            self._paho.loop_write()
        except Exception as error:  # noqa: BLE001  # whatever the socket says, it is over
            self._fail(error)
            self.close_socket()
            return
        if not self._paho._registered_write and sock.fileno() >= 0:  # else it would be called at every turn
            self._loop.remove_writer(sock.fileno())

    def _on_message(self, client: Any, userdata: Any, message: Any) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        self.heard_at = self._loop.time()
        self._pause = self._throttle.on_message(self.heard_at)
        self._hand_over(topic, message.payload)

    def _on_publish(
        self, client: Any, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        answer = self.answers.pop(mid, None)
        if answer and not answer.done():
            answer.set_result(reason_code)

    def _on_disconnect(
        self,
        client: Any,
        userdata: Any,
        flags: Any,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self.reason = reason_code.value
        if self._connected.done():
            super()._on_disconnect(client, userdata, flags, reason_code, properties)
        self._fail(self.failure or ConnectionResetError())

    def _fail(self, error: Exception) -> None:
        """Whoever waits for the connection, or for its end, is told now."""
        self.failure = self.failure or error
        for future in (self._connected, self._disconnected):
            if not future.done():
                future.set_exception(aiomqtt.MqttError("lost"))
            if not future.cancelled():
                future.exception()  # seen: nobody may be waiting
        if not self.over.done():
            self.over.set_result(None)


class Connection:
    """An async context manager; raises `BrokerError` when the broker cannot be reached.

    `will` is (topic, payload), published by the broker with QoS 1 and retained when we are gone.
    """

    def __init__(
        self,
        broker: BrokerSettings,
        client_id: str,
        on_message: OnMessage,
        context: ssl.SSLContext | None,
        will: tuple[str, bytes] | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self._broker = broker
        limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        limits.MaximumPacketSize = MAX_PACKET
        limits.ReceiveMaximum = MAX_UNFINISHED
        self._client = _Client(
            on_message,
            throttle or Throttle(2000.0, 4000),
            hostname=broker.host,
            port=broker.port,
            identifier=client_id,
            username=broker.username or None,
            password=broker.password or None,
            will=None if will is None else aiomqtt.Will(*will, qos=1, retain=True),
            timeout=broker.timeout,
            keepalive=broker.keepalive,
            properties=limits,
            tls_context=context,
        )

    async def __aenter__(self) -> Self:
        try:
            await self._client.__aenter__()
        except (aiomqtt.MqttError, OSError, ValueError) as error:
            self._client.close_socket()
            raise self._cannot_connect(error) from error
        except asyncio.CancelledError:
            self._client.abandoned = True
            self._client.close_socket()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Says goodbye, so that no will is published; a broker that is gone is not waited for."""
        client = self._client
        over = client.over
        if over.done():
            return
        client._paho.disconnect()
        await asyncio.wait({over}, timeout=1.0)
        self.cut()

    def cut(self) -> None:
        """End it without a goodbye: the broker publishes the will when it notices."""
        client = self._client
        client.close_socket()
        client._fail(client.failure or ConnectionAbortedError("it did not answer in time"))

    async def lost(self) -> BrokerError:
        """Returns when the connection is over, with the reason."""
        await asyncio.wait({self._client.over})
        return self._why_lost()

    async def subscribe(self, topic: str) -> bool:
        """Whether it was granted, with QoS 1, which proves little: brokers grant and then deliver nothing."""
        client = self._client
        options = SubscribeOptions(qos=1)
        asked = asyncio.ensure_future(client.subscribe(topic, options=options, timeout=math.inf))
        try:
            await self._wait(asked)
            codes = asked.result()
        except (aiomqtt.MqttError, OSError) as error:
            failure = self._why_lost(error)
            self.cut()
            raise failure from error
        finally:
            asked.cancel()
        return not any(code.is_failure if isinstance(code, ReasonCode) else code >= 128 for code in codes)

    async def publish(
        self, topic: str, payload: bytes, qos: int = 1, retain: bool = False, expiry: int | None = None
    ) -> None:
        """Raises `DeniedError` if the broker says so (QoS 1), `BrokerError` if it says nothing in time.

        An answer that does not come ends the connection: what is unacknowledged would pile up.
        """
        if len(payload) > MAX_PAYLOAD:
            raise LocalError(f"a message of {len(payload)} bytes was to leave; {MAX_PAYLOAD} is the most")
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if expiry is not None:
            properties.MessageExpiryInterval = expiry
        client = self._client
        if client.over.done():
            raise self._why_lost()
        info = client._paho.publish(topic, payload, qos, retain, properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise self._why_lost()
        if qos:
            await self._answered(info.mid, topic)

    async def _answered(self, mid: int, topic: str) -> None:
        client = self._client
        answer: asyncio.Future[ReasonCode] = asyncio.get_running_loop().create_future()
        client.answers[mid] = answer
        try:
            await self._wait(answer)
        finally:
            client.answers.pop(mid, None)
        if answer.result().is_failure:
            raise DeniedError(
                f"the broker {self._broker} does not let this client publish to {topic} "
                f"({answer.result()}); check its access rules (docs/fleet.md)",
                topic,
            )

    async def _wait(self, answer: asyncio.Future[Any]) -> None:
        """Returns when it is there. Raises `BrokerError` for a connection that is over, or silent."""
        client, timeout = self._client, self._broker.timeout
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        either: set[asyncio.Future[Any]] = {answer, client.over}
        while not answer.done():
            await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            is_flooded = loop.time() - client.heard_at < timeout
            if client.over.done() or not is_flooded or loop.time() - asked_at > FLOODED_PATIENCE * timeout:
                break
        if not answer.done():
            self.cut()
            raise self._why_lost()

    def _cannot_connect(self, error: BaseException) -> BrokerError:
        if isinstance(error, aiomqtt.MqttCodeError) and isinstance(error.rc, ReasonCode):
            return by_reason(self._broker, error.rc.value)
        return by_cause(self._broker, self._client.failure or error, connecting=True)

    def _why_lost(self, error: BaseException | None = None) -> BrokerError:
        client = self._client
        if client.reason is not None and client.reason >= 128:
            return by_reason(self._broker, client.reason)
        return by_cause(self._broker, client.failure or error, connecting=False)
