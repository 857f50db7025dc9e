"""The daemon's configuration: checks of single settings, the sections, the schema.

`load_config` builds it; callers pass it down and never change it. A check returns a value's fault, or "".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from common.config import merge
from common.config.merge import Loaded
from common.config.setting import LOG_FORMATS, LOG_LEVELS, Schema, check_section, setting
from common.errors import UserError
from common.privacy import LEVELS as LEVELS_OF_PRIVACY
from common.privacy import Privacy
from common.wire.grpc_options import host_and_port, is_loopback
from edge_client.core.policies import make_policy

DAY = 86_400.0  # seconds
MEBIBYTE = 1 << 20
UNIX = "unix:"
LONGEST_SOCKET_PATH = 100  # bytes; the kernels' limit is 104 on macOS and 108 on Linux, its end included
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
UPDATE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,250}\.gguf(#[0-9a-fA-F]{64})?")
TOPIC_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")

file_setting = partial(setting, has_flag=False)
"""Declares a setting that files and variables set, and no flag: no single start of the daemon needs another
value."""

# Checks of single settings ----------------------------------------------------------------------------------


def _check_addresses(values: tuple[str, ...]) -> str:
    """Check verifiers' addresses: at least one, each HOST:PORT, none twice."""
    if not values:
        return "it must name at least one HOST:PORT"
    wrong = [each for each in values if host_and_port(each) is None]
    if wrong:
        return f"{wrong[0]!r} is not of the form HOST:PORT, for example 127.0.0.1:50051"
    return "" if len(set(values)) == len(values) else "it must name each address once"


def _check_listen(value: str) -> str:
    """Check the API's address."""
    if value.startswith(UNIX):
        path = value.removeprefix(UNIX)
        if not path.startswith("/"):
            return "the path of a unix socket must be absolute, for example unix:/run/forerun/edge.sock"
        too_long = len(path.encode()) > LONGEST_SOCKET_PATH
        return f"the path of a unix socket has at most {LONGEST_SOCKET_PATH} bytes" if too_long else ""
    if host_and_port(value) is None:
        return "it must be HOST:PORT, for example 127.0.0.1:8080, or unix:PATH"
    return ""


def _check_hosts(values: tuple[str, ...]) -> str:
    """Check host names as a Host header has them, without a port."""
    wrong = [each for each in values if not HOST.fullmatch(each)]
    if wrong:
        return f"{wrong[0]!r} is no host name; leave out scheme, port and wildcards"
    return ""


def _check_origins(values: tuple[str, ...]) -> str:
    """Check origins as a browser writes them: scheme, host and port, nothing after."""
    for each in values:
        parts = urlsplit(each)
        bare = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme not in ("http", "https") or not parts.netloc or each != bare:
            return f"{each!r} is no web origin; write for example https://chat.example.com, without a path"
    return ""


def _check_sha256(value: str) -> str:
    is_hash = not value or SHA256.fullmatch(value)
    return "" if is_hash else "it must be 64 hex digits, as sha256sum prints them"


def _check_update(value: str) -> str:
    """Check that the value is empty, or names a file in a folder, which a fleet may choose and not leave."""
    return "" if not value or UPDATE.fullmatch(value) else "it must be NAME.gguf or NAME.gguf#SHA256"


def _check_policy(value: str) -> str:
    """Check that the growth policy exists."""
    try:
        make_policy(value)
    except UserError as error:
        return str(error)
    return ""


def _check_broker(value: str) -> str:
    """Check that the value is empty, or the URL of an MQTT broker, which has no path."""
    if not value:
        return ""
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return "its port must be a number up to 65535"
    if parts.username is not None or parts.password is not None:
        return "it must not hold a name or password; give fleet.username and fleet.password_file"
    is_url = parts.scheme in ("mqtt", "mqtts") and parts.hostname and port != 0
    if is_url and not parts.path.strip("/"):
        return ""
    return "it must be mqtts://HOST:PORT, or mqtt://HOST:PORT without TLS"


def _check_topic_level(value: str) -> str:
    """Check that the value is empty, or one level of an MQTT topic and no wildcard."""
    if not value or TOPIC_LEVEL.fullmatch(value):
        return ""
    return "it must be letters, digits, '.', '_' and '-', 64 at most, and begin with a letter or a digit"


def stays_here(address: str) -> bool:
    """Return whether HOST:PORT is this machine only. No name other than localhost is looked up."""
    found = host_and_port(address)
    return found is not None and is_loopback(found[0])


# Sections ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifierSection:
    """Configures the connection to verifiers. Raises `UserError` as all sections do."""

    addresses: tuple[str, ...] = setting(
        ("127.0.0.1:50051",),
        "verifiers of one model, under one name; the fastest is used, the others replace it if it fails",
        form="HOST:PORT",
        check=_check_addresses,
        alias="--verifier",
        is_common=True,
    )
    tls_ca: str = setting(
        "",
        "PEM file of the authorities that sign the verifiers' certificates; empty: the system's",
        is_path=True,
        is_common=True,
    )
    tls_cert: str = setting(
        "", "PEM file of this device's certificate, for mTLS", is_path=True, needs={"tls_key": ""}
    )
    tls_key: str = setting(
        "", "PEM file of the key of verifier.tls_cert", is_path=True, needs={"tls_cert": ""}
    )
    tls_server_name: str = setting("", "name in the verifiers' certificates, if it differs from the address")
    token_file: str = setting(
        "",
        "file of the token for verifiers that require one; read anew when it changes, sent only over TLS",
        is_path=True,
        is_common=True,
    )
    insecure: bool = setting(
        False,
        "plain text to other machines, too; a verifier on this machine needs no TLS by default",
        is_common=True,
    )
    privacy: str = setting(
        Privacy.PADDED.title,
        "protection of message sizes from network observers (docs/guarantees.md): padded gives all messages "
        "in a direction one size, off does not; a verifier may require padded",
        choices=LEVELS_OF_PRIVACY,
        alias="--privacy",
    )
    fallback: str = setting(
        "wait",
        "when no verifier answers: wait for one, show the draft model's text (marked), or fail the request",
        choices=("wait", "draft", "fail"),
        alias="--fallback",
        is_common=True,
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.insecure and self.asks_for_tls:
            raise UserError(
                "verifier.insecure is true, but TLS files or a token are given; drop the one or the other"
            )

    @property
    def asks_for_tls(self) -> bool:
        """Tell whether any setting configures or needs TLS."""
        return bool(self.tls_ca or self.tls_cert or self.tls_server_name or self.token_file)

    def is_plain(self, address: str) -> bool:
        """Return whether the connection to `address` has no TLS."""
        return self.insecure or (stays_here(address) and not self.asks_for_tls)


@dataclass(frozen=True, slots=True)
class DraftSection:
    """Configures the draft model on this device."""

    model: str = setting(
        "",
        "the draft model, which every daemon needs; with draft.drafting false or draft.policy off only its "
        "tokens are read",
        form="a GGUF file, hf://organisation/repository/file.gguf, or an https:// address",
        is_path=True,
        alias="--draft",
        is_common=True,
    )
    sha256: str = setting(
        "",
        "SHA-256 of the draft model's file; a file with another hash is not loaded",
        form="64 hex digits",
        check=_check_sha256,
    )
    small: str = setting(
        "",
        "a smaller model in front of the draft model, which evaluates its chains in one batch "
        "(docs/edge.md); empty: none",
        form="as draft.model; its tokens must be the same",
        is_path=True,
        alias="--small-draft",
    )
    second: str = setting(
        "",
        "a second draft model, which drafts in the same tree (docs/edge.md); empty: none",
        form="as draft.model; its tokens must be the same",
        is_path=True,
        alias="--second-draft",
    )
    tokens: str = setting(
        "",
        "a file with the target's tokens, for a draft model with other ones, which then drafts through a "
        "translation (docs/edge.md); empty: the draft model's tokens are the target's",
        form="as draft.model; its weights are not read",
        is_path=True,
        alias="--tokens",
    )
    updates: str = file_setting(
        "",
        "where newer drafts come from: GGUF files of the same tokens, or adapters (LoRA) of draft.model; "
        "a tenth of the texts tries each, and it stays if acceptance does not fall (docs/edge.md); empty: "
        "nowhere",
        form="a folder, or hf://organisation/repository",
        is_path=True,
    )
    update: str = file_setting(
        "",
        "file in draft.updates to take; empty: the newest in the folder",
        form="NAME.gguf, or NAME.gguf#SHA256",
        check=_check_update,
    )
    threads: int = setting(
        0,
        "processor threads of the draft model; 0: all processors but one",
        unit="threads",
        low=0,
        high=512,
        alias="--threads",
        is_common=True,
    )
    gpu_layers: int | None = setting(
        None,
        "layers of the draft model on an accelerator; auto: all, if llama.cpp was built for one; -1: all",
        unit="layers",
        unset="auto",
        low=-1,
        high=2**15,
        alias="--gpu-layers",
        is_common=True,
    )
    context: int | None = setting(
        None,
        "KV memory of the draft model, in tokens over all texts together; auto: the longest text of draft "
        "and target, in at most a quarter of the free memory",
        unit="tokens",
        unset="auto",
        low=1,
        high=2**31 - 1,
        alias="--context",
        is_common=True,
    )
    seats: int = setting(
        8,
        "completions that draft at the same time; the verifier writes any others alone",
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
        is_common=True,
    )
    drafting: bool = setting(
        True,
        "load the draft model; without it draft.recall alone proposes",
        alias="--drafting",
    )
    recall: bool = setting(
        True,
        "proposals copied from earlier in the same text, beside those of the draft model",
        alias="--recall",
        is_common=True,
    )
    remember: int = setting(
        262_144,
        "newest tokens of this daemon's texts, kept in memory for recall (10 bytes each); 0: none",
        unit="tokens",
        low=0,
        high=2**24,
        alias="--remember",
    )
    remember_on_disk: bool = setting(
        False,
        "keep the tokens of draft.remember in a file over restarts, readable by its owner alone",
    )
    index: tuple[str, ...] = setting(
        (),
        "indexes of your files, from which recall proposes; updated when the files change",
        form="a name given by `forerun index`, or the path of an index",
        alias="--index",
        is_common=True,
    )
    policy: str = setting(
        "adaptive",
        "growth policy, how far to draft: adaptive, tree, chain, sync:K, off (docs/adaptation.md) or a "
        "published scheme (docs/schemes.md)",
        check=_check_policy,
        alias="--policy",
        is_common=True,
    )
    power_steps_per_second: float = file_setting(
        0.0,
        "most draft steps per second, to save the battery; 0: unlimited",
        unit="steps per second",
        low=0.0,
        high=1e6,
    )

    def __post_init__(self) -> None:
        check_section(self)
        if sum(map(bool, (self.small, self.second, self.tokens))) > 1:
            raise UserError("draft.small, draft.second and draft.tokens exclude each other; give one at most")

    @property
    def is_loaded(self) -> bool:
        """Tell whether the draft model is loaded when a text needs it."""
        return self.drafting and self.policy != "off"

    def growth_policy(self) -> str:
        """Return the growth policy within the power budget. Raise `UserError` if it cannot have one."""
        steps = self.power_steps_per_second
        if not steps:
            return self.policy
        policy = f"{self.policy}{',' if ':' in self.policy else ':'}max_steps_per_second={steps:g}"
        make_policy(policy)
        return policy


@dataclass(frozen=True, slots=True)
class ApiSection:
    """Configures the HTTP API that programs on this device use."""

    listen: str = setting(
        "127.0.0.1:8080",
        "address of the API",
        form="HOST:PORT or unix:PATH",
        check=_check_listen,
        alias="--listen",
        is_common=True,
    )
    token_file: str = setting(
        "",
        "file of the API's bearer token; empty: `token` in the state folder, made at the first start",
        is_path=True,
    )
    auth: bool = setting(
        True,
        "require the token; over a unix socket the permissions of its file decide instead",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "names, beside the listen address, allowed in a request's Host header",
        form="a host name",
        check=_check_hosts,
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "web origins whose pages may call the API; none by default",
        form="https://HOST[:PORT]",
        check=_check_origins,
    )
    tls_cert: str = setting(
        "", "PEM file of the API's certificate chain", is_path=True, needs={"tls_key": ""}
    )
    tls_key: str = setting(
        "",
        "PEM file of the key of api.tls_cert",
        is_path=True,
        needs={"tls_cert": ""},
    )
    sampling_defaults: str = setting(
        "model",
        "source of sampling values that a request omits: the target's generation_config, as the verifier "
        "reports it, or OpenAI's API (temperature 1, no filter)",
        choices=("model", "openai"),
    )
    max_queue: int = file_setting(
        64, "most texts that wait for a seat; the next is answered 429", unit="texts", low=0, high=2**16
    )
    max_body_bytes: int = file_setting(
        4 * MEBIBYTE, "size of a request; a larger one is answered 413", unit="bytes", low=1024, high=2**30
    )
    request_timeout: float = file_setting(
        600.0, "longest time of a completion", unit="seconds", low=0.1, high=DAY
    )
    resume: str = setting(
        "memory",
        "storage of running completions for resuming, and of responses for previous_response_id: in memory, "
        "on disk over restarts, or none",
        choices=("memory", "durable", "off"),
    )
    page: bool = setting(True, "serve the status page at /")

    def __post_init__(self) -> None:
        check_section(self)
        if self.listen.startswith(UNIX) or stays_here(self.listen):
            return
        if not (self.auth and self.tls_cert):
            raise UserError(
                f"api.listen is {self.listen}, which other machines reach; that needs api.auth and "
                "api.tls_cert with api.tls_key. Or listen on 127.0.0.1 or a unix socket"
            )


@dataclass(frozen=True, slots=True)
class FleetSection:
    """Configures the broker, by which an operator monitors and sets devices. It never delays a token."""

    broker: str = file_setting(
        "",
        "the MQTT broker; empty: none",
        form="mqtts://HOST:PORT or mqtt://HOST:PORT",
        check=_check_broker,
        needs={"tenant": "", "device": ""},
    )
    tenant: str = file_setting("", "the first level of this fleet's topics", check=_check_topic_level)
    device: str = file_setting(
        "", "this device's name; with a certificate, the name in that certificate", check=_check_topic_level
    )
    ca: str = file_setting("", "PEM file of the broker's authorities; empty: the system's", is_path=True)
    cert: str = file_setting("", "PEM file of this device's certificate", is_path=True, needs={"key": ""})
    key: str = file_setting("", "PEM file of the key of fleet.cert", is_path=True, needs={"cert": ""})
    username: str = file_setting("", "user name at the broker, if it requires one")
    password_file: str = file_setting(
        "", "file of the password of fleet.username", is_path=True, needs={"username": ""}
    )
    public_key: str = file_setting(
        "",
        "Ed25519 public key that verifies the fleet's document; empty: every document is rejected",
        form="64 hex digits or a file",
    )
    telemetry_interval: float = file_setting(30.0, "time between reports", unit="seconds", low=1.0, high=DAY)

    def __post_init__(self) -> None:
        check_section(self)
        if self.device == "fleet":
            raise UserError(
                "fleet.device is 'fleet', the level of the whole fleet's topics; choose another name"
            )
        if self.broker and not self.tls:
            if self.ca or self.cert:
                raise UserError(
                    "fleet.ca and fleet.cert have no effect without TLS; use mqtts:// or remove them"
                )
            if self.password_file and not is_loopback(urlsplit(self.broker).hostname or ""):
                raise UserError("the password of fleet.password_file would travel in the clear; use mqtts://")

    @property
    def tls(self) -> bool:
        """Tell whether the connection to the broker is encrypted."""
        return urlsplit(self.broker).scheme == "mqtts"


@dataclass(frozen=True, slots=True)
class LogSection:
    """Configures the daemon's log, which never holds a prompt or a text."""

    level: str = setting(
        "info", "lowest level that is logged", choices=LOG_LEVELS, alias="--log-level", is_common=True
    )
    format: str = setting(
        "text", "plain lines, or a JSON object per line", choices=LOG_FORMATS, alias="--log-format"
    )
    file: str = setting(
        "",
        "log file; empty: standard error, which a service manager keeps",
        is_path=True,
        alias="--log-file",
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class ServiceSection:
    """Configures the unit that `forerun edge install-service` writes for the service manager."""

    stop_timeout: float = setting(
        20.0,
        "time for running completions to end when the daemon stops",
        unit="seconds",
        low=0.0,
        high=3600.0,
    )
    watchdog: float = file_setting(
        30.0,
        "time without a sign of life after which the daemon is restarted; 0: never",
        unit="seconds",
        low=0.0,
        high=3600.0,
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class EdgeConfig:
    """Holds the daemon's whole configuration."""

    verifier: VerifierSection = field(default_factory=VerifierSection)
    draft: DraftSection = field(default_factory=DraftSection)
    api: ApiSection = field(default_factory=ApiSection)
    fleet: FleetSection = field(default_factory=FleetSection)
    log: LogSection = field(default_factory=LogSection)
    service: ServiceSection = field(default_factory=ServiceSection)
    pairs: Mapping[str, EdgeConfig] = field(default_factory=dict)  # each with draft and verifier of its own

    def __post_init__(self) -> None:
        if taken := sorted(self.pairs.keys() & RESERVED):
            raise UserError(f"[pairs.{taken[0]}]: this name means the first pair; choose another")

    @property
    def each_pair(self) -> Mapping[str, EdgeConfig]:
        """Return a configuration for each pair by its name, which is empty for the only one without."""
        return self.pairs or {"": self}


RESERVED = frozenset({"default", "forerun"})
"""Names of the default model, which no pair may have."""

FLEET_MAY_SET = frozenset(
    {
        "verifier.fallback",
        "draft.keep_alive",
        "draft.recall",
        "draft.policy",
        "draft.update",
        "draft.power_steps_per_second",
    }
)
"""Settings that a fleet may set; each takes effect at once. All others are the owner's alone: trusted peers,
the model, the paths of files. So a thief of the fleet's key cannot change them, only choose among the drafts
of a place that the owner has named (`draft.update`)."""

SCHEMA = Schema(
    EdgeConfig,
    "FORERUN_EDGE_",
    fleet_may_set=FLEET_MAY_SET,
    variants="pairs",
    varied=("draft", "verifier"),
)
HEAD = """\
# Configuration of the edge daemon, `forerun edge`. Lines that begin with # have no effect and
# show defaults. `forerun edge config show --origin` shows each value in force and its origin.
# For several models add tables [pairs.NAME.draft] and [pairs.NAME.verifier] (docs/edge.md).
"""


def load_config(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    files: Sequence[Path],
    fleet: Mapping[str, object] | None = None,
) -> Loaded[EdgeConfig]:
    """Load the configuration as `common.config.merge.load_config` does, with this schema."""
    return merge.load_config(SCHEMA, flags, environment, files, fleet)
