"""The sections of the daemon's configuration. Built by `load_config`, passed down, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from common.errors import UserError
from common.privacy import LEVELS as LEVELS_OF_PRIVACY
from common.privacy import Privacy
from edge_client.config import checks
from edge_client.config.setting import check_section, setting

LEVELS = ("debug", "info", "warning", "error")
DAY = 86_400.0  # seconds
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class VerifierSection:
    """Who decides. Raises `UserError` as all sections do."""

    NAME: ClassVar[str] = "verifier"

    addresses: tuple[str, ...] = setting(
        ("127.0.0.1:50051",),
        "verifiers that serve the same model; the nearest is used, the others are there if it fails",
        form="HOST:PORT",
        check=checks.addresses,
        alias="--verifier",
    )
    tls_ca: str = setting(
        "",
        "PEM file of the authorities that sign the verifiers; empty: the system's",
        is_path=True,
        is_local=True,
    )
    tls_cert: str = setting(
        "", "PEM file of this device's certificate, for mTLS", is_path=True, is_local=True
    )
    tls_key: str = setting("", "PEM file of that certificate's key", is_path=True, is_local=True)
    tls_server_name: str = setting(
        "", "name in the verifier's certificate, where it is not the address", is_local=True
    )
    token_file: str = setting(
        "",
        "file of a token for verifiers that ask for one, read anew when it changes; only sent over TLS",
        is_path=True,
        is_local=True,
    )
    insecure: bool = setting(
        False,
        "speak without TLS to other machines as well; on this machine no TLS is the rule",
        is_local=True,
    )
    privacy: str = setting(
        Privacy.PADDED.title,
        "what an observer of the network may learn of a text from sizes and times (docs/privacy.md): padded "
        "gives all messages one size, strict also fixed times, off neither; a verifier may insist on more",
        choices=LEVELS_OF_PRIVACY,
        is_local=True,
        alias="--privacy",
    )
    fallback: str = setting(
        "wait",
        "when no verifier answers: wait for one, let the draft write (the mode is told), or fail the request",
        choices=("wait", "draft", "fail"),
        alias="--fallback",
    )
    patience: float = setting(
        0.8, "time without a verifier until that happens", unit="seconds", low=0.0, high=DAY
    )

    def __post_init__(self) -> None:
        check_section(self.NAME, self)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("verifier.tls_cert and verifier.tls_key belong together; give both or neither")
        if self.insecure and self.asks_for_tls:
            raise UserError(
                "verifier.insecure is true and TLS files or a token are given; drop the one or the other"
            )

    @property
    def asks_for_tls(self) -> bool:
        """Whether any setting is about TLS, or needs it."""
        return bool(self.tls_ca or self.tls_cert or self.tls_server_name or self.token_file)

    def is_plain(self, address: str) -> bool:
        """Whether `address` is spoken to without TLS."""
        return self.insecure or (checks.is_loopback(address) and not self.asks_for_tls)


@dataclass(frozen=True, slots=True)
class DraftSection:
    """What runs ahead on this device."""

    NAME: ClassVar[str] = "draft"

    model: str = setting(
        "",
        "the draft model, which every daemon needs: with policy off only its tokens are read",
        form="a GGUF file, hf://organisation/repository/file.gguf, or the name given to `forerun pull`",
        is_path=True,
        alias="--draft",
    )
    sha256: str = setting(
        "",
        "what the draft model's file must hash to; a file that differs is not loaded",
        form="64 hex digits",
        check=checks.sha256,
    )
    threads: int = setting(
        0,
        "processor threads of the draft model; 0: all but one",
        unit="threads",
        low=0,
        high=512,
        alias="--threads",
    )
    gpu_layers: int = setting(
        0,
        "layers of the draft model on an accelerator; -1: all",
        unit="layers",
        low=-1,
        high=2**15,
        alias="--gpu-layers",
    )
    context: int = setting(
        4096,
        "KV memory of the draft model, in tokens over all texts together; 0: its trained context",
        unit="tokens",
        low=0,
        high=2**31 - 1,
        alias="--context",
    )
    seats: int = setting(
        8,
        "completions that draft at the same time; others are written by the server alone",
        unit="completions",
        low=1,
        high=64,
    )
    keep_alive: float = setting(
        300.0,
        "time without a completion until the draft model is unloaded; 0: at once, -1: never",
        unit="seconds",
        low=-1.0,
        high=365 * DAY,
        alias="--keep-alive",
    )
    recall: bool = setting(
        True,
        "proposals copied from earlier in the same text, beside those of the draft model",
        alias="--recall",
    )
    ngrams: int = setting(
        65536,
        "size of the n-gram table that recall builds over all texts of this daemon; 0: no table",
        unit="entries",
        low=0,
        high=2**24,
        alias="--ngrams",
    )
    policy: str = setting(
        "adaptive",
        "how far ahead: adaptive, tree, chain, sync:K or off (docs/adaptation.md)",
        check=checks.policy,
        alias="--policy",
    )
    prior: str = setting(
        "",
        "file of `forerun fit`: how far the draft is trusted at first",
        is_path=True,
        is_local=True,
        alias="--prior",
    )
    power_steps_per_second: float = setting(
        0.0,
        "draft steps at most, to save the battery; 0: any number",
        unit="steps per second",
        low=0.0,
        high=1e6,
    )

    def __post_init__(self) -> None:
        check_section(self.NAME, self)


@dataclass(frozen=True, slots=True)
class ApiSection:
    """The HTTP API that programs on this device use."""

    NAME: ClassVar[str] = "api"

    listen: str = setting(
        "127.0.0.1:8080",
        "where the API is",
        form="HOST:PORT or unix:PATH",
        check=checks.listen,
        is_local=True,
        alias="--listen",
    )
    token_file: str = setting(
        "",
        "file of the bearer token; empty: `token` in the state folder, made at the first start",
        is_path=True,
        is_local=True,
    )
    auth: bool = setting(
        True,
        "ask for the token; over a unix socket the rights of its file decide in its place",
        is_local=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "names beside the listen address that a request's Host may have",
        form="a host name",
        check=checks.hosts,
        is_local=True,
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "web origins whose pages may call the API; none by default",
        form="https://HOST[:PORT]",
        check=checks.origins,
        is_local=True,
    )
    tls_cert: str = setting("", "PEM file of the API's certificate chain", is_path=True, is_local=True)
    tls_key: str = setting("", "PEM file of its key", is_path=True, is_local=True)
    sampling_defaults: str = setting(
        "model",
        "source of sampling values for requests that name none: the target's generation_config, as the "
        "verifier tells it, or OpenAI's API, temperature 1 and nothing else",
        choices=("model", "openai"),
    )
    max_queue: int = setting(
        64, "requests that wait for a seat; one more is answered 429", unit="requests", low=0, high=2**16
    )
    max_body_bytes: int = setting(
        4 * MEBIBYTE, "size of a request; more is answered 413", unit="bytes", low=1024, high=2**30
    )
    request_timeout: float = setting(
        600.0, "time that a completion may take", unit="seconds", low=0.1, high=DAY
    )
    resume_ttl: float = setting(
        300.0, "time that a broken stream can be taken up again", unit="seconds", low=0.0, high=7 * DAY
    )
    resume: str = setting(
        "memory",
        "where running completions are kept for that: in memory, on disk over restarts, or nowhere",
        choices=("memory", "durable", "off"),
    )
    metrics: bool = setting(True, "serve /metrics for Prometheus, which asks with the token like everybody")
    page: bool = setting(True, "serve the status page at /", is_local=True)

    def __post_init__(self) -> None:
        check_section(self.NAME, self)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UserError("api.tls_cert and api.tls_key belong together; give both or neither")
        if checks.is_unix(self.listen) or checks.is_loopback(self.listen):
            return
        if not (self.auth and self.tls_cert):
            raise UserError(
                f"api.listen is {self.listen}, which other machines reach; that needs api.auth and "
                "api.tls_cert with api.tls_key. Or listen on 127.0.0.1 or a unix socket"
            )


@dataclass(frozen=True, slots=True)
class FleetSection:
    """The broker, by which many devices are watched and configured. Nothing of it is on a token's path."""

    NAME: ClassVar[str] = "fleet"

    broker: str = setting(
        "",
        "the MQTT broker; empty: none",
        form="mqtts://HOST:PORT or mqtt://HOST:PORT",
        check=checks.broker,
        is_local=True,
    )
    tenant: str = setting(
        "", "the first level of this fleet's topics", check=checks.topic_level, is_local=True
    )
    device: str = setting(
        "", "this device's name; with a certificate the name in it", check=checks.topic_level, is_local=True
    )
    ca: str = setting(
        "", "PEM file of the broker's authorities; empty: the system's", is_path=True, is_local=True
    )
    cert: str = setting("", "PEM file of this device's certificate", is_path=True, is_local=True)
    key: str = setting("", "PEM file of its key", is_path=True, is_local=True)
    username: str = setting("", "name at the broker, where it asks for one", is_local=True)
    password_file: str = setting("", "file of that name's password", is_path=True, is_local=True)
    public_key: str = setting(
        "",
        "Ed25519 key that fleet configuration must be signed with; empty: none is accepted",
        form="64 hex digits, base64, or a file",
        is_local=True,
    )
    discover: bool = setting(False, "use verifiers that are offered at the broker, too", is_local=True)
    verifier_public_key: str = setting(
        "",
        "Ed25519 key that may sign offers of verifiers, and nothing else; the fleet's own may as well",
        form="64 hex digits, base64, or a file",
        is_local=True,
    )
    verifier_patterns: tuple[str, ...] = setting(
        (), "verifiers that may be offered unsigned, as patterns of a shell", form="HOST:PORT", is_local=True
    )
    telemetry_interval: float = setting(30.0, "time between two reports", unit="seconds", low=1.0, high=DAY)

    def __post_init__(self) -> None:
        check_section(self.NAME, self)
        if self.discover and not (self.public_key or self.verifier_public_key or self.verifier_patterns):
            raise UserError(
                "fleet.discover is true, and no offer would count; give fleet.verifier_public_key or "
                "fleet.verifier_patterns"
            )
        if self.broker and not (self.tenant and self.device):
            raise UserError("fleet.broker is given; its topics also need fleet.tenant and fleet.device")
        if bool(self.cert) != bool(self.key):
            raise UserError("fleet.cert and fleet.key belong together; give both or neither")
        if self.password_file and not self.username:
            raise UserError("fleet.password_file is given without fleet.username; give both")


@dataclass(frozen=True, slots=True)
class LogSection:
    """What the daemon writes about itself. Never a prompt or a text."""

    NAME: ClassVar[str] = "log"

    level: str = setting("info", "how much is told", choices=LEVELS, alias="--log-level")
    format: str = setting(
        "text", "lines for people, or a JSON object a line", choices=("text", "json"), alias="--log-format"
    )
    file: str = setting(
        "",
        "file to write to; empty: standard error, which a service manager keeps",
        is_path=True,
        is_local=True,
        alias="--log-file",
    )

    def __post_init__(self) -> None:
        check_section(self.NAME, self)


@dataclass(frozen=True, slots=True)
class ServiceSection:
    """How a service manager treats the daemon; `forerun edge install-service` writes it into the unit."""

    NAME: ClassVar[str] = "service"

    stop_timeout: float = setting(
        20.0,
        "time that running completions may take to end when the daemon is stopped",
        unit="seconds",
        low=0.0,
        high=3600.0,
        is_local=True,
    )
    watchdog: float = setting(
        30.0,
        "time without a sign of life after which the daemon is restarted; 0: never",
        unit="seconds",
        low=0.0,
        high=3600.0,
        is_local=True,
    )
    restart_delay: float = setting(
        2.0,
        "time before a failed daemon is started again",
        unit="seconds",
        low=0.1,
        high=3600.0,
        is_local=True,
    )

    def __post_init__(self) -> None:
        check_section(self.NAME, self)
