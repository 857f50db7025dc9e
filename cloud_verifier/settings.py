"""Define the verifier's configuration: its sections and their schema.

`load_config` builds it; it is passed down and never changes. One schema gives the flags of `forerun verify`,
the variables FORERUN_VERIFY_KEY and the TOML file of `--config`. A key is the same word in all of them. (The
prefix is not FORERUN_VERIFIER_, because Kubernetes sets variables of that name for a Service
`forerun-verifier`.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cloud_verifier.core.engine_protocol import Judge
from cloud_verifier.core.limits import CUDA_CHUNK, SchedulerConfig
from cloud_verifier.core.rules import rule_of
from cloud_verifier.model_source import SOURCES, drafter_kind
from common.acceptance import LOSSLESS, AcceptanceRule, rule_named
from common.config.live_files import read_bytes
from common.config.setting import LOG_FORMATS, LOG_LEVELS, Schema, check_section, setting
from common.errors import UserError
from common.llama.files import is_gguf
from common.offers import offer
from common.privacy import LEVELS, Privacy
from common.wire.bounds import model_name
from common.wire.grpc_options import host_and_port

TORCH_ONLY = (
    "device",
    "dtype",
    "drafter",
    "hint_at",
    "attention",
    "tensor_parallel",
)
LLAMA_ONLY = ("gpu_layers", "tensor_split")
"""Settings of one engine alone."""

JUDGE_BYTES = 2**24  # of a file; 16,384 features take 1 MB

ATTENTIONS = ("auto", "torch_ref", "triton")
BOTH = "both identify callers"
LOSSY = ", ".join(rule.title for rule in AcceptanceRule if not rule.lossless)


def _check_address(value: str) -> str:
    is_fine = not value or host_and_port(value) is not None
    return "" if is_fine else "it must be HOST:PORT, for example 127.0.0.1:50051"


def _check_shares(value: str) -> str:
    try:
        fine = not value or all(0.0 <= float(each) < math.inf for each in value.split(","))
    except ValueError:
        fine = False
    return "" if fine else "it must be numbers with commas between them, for example 3,1"


def _check_rules(values: tuple[str, ...]) -> str:
    try:
        for each in values:
            rule_named(each)
    except UserError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class TargetSection:
    """The target section selects the target model and how it is computed."""

    model: str | None = setting(
        None,
        "folder with config, tokenizer, safetensors, or hub id; or a GGUF file, for llama.cpp; required",
        form="a folder, a hub id or a GGUF file",
        short="-m",
        is_common=True,
    )
    name: str = setting("", "the model's name for edges; empty: the folder's name, or the hub id")
    device: str = setting("cpu", "cpu, cuda or cuda:N", is_common=True)
    dtype: str = setting(
        "auto",
        "auto, float32, bfloat16 or float16; auto: as stored on a GPU, and float32 on a CPU, or bfloat16 if "
        "the CPU computes in it and a bfloat16 model has 100 million parameters or more",
        is_common=True,
    )
    threads: int = setting(
        0,
        "threads of a target step; 0: all cores, of GGUF targets all but one",
        unit="threads",
        low=0,
        is_common=True,
    )
    gpu_layers: int | None = setting(
        None,
        "layers of a GGUF target on GPUs; auto: all, if llama.cpp was built for a GPU",
        unit="layers",
        low=0,
        unset="auto",
        is_common=True,
    )
    tensor_split: str = setting(
        "",
        "shares of several GPUs in a GGUF target; empty: by their free memory",
        form="numbers as 3,1",
        check=_check_shares,
        has_flag=False,
    )
    slots: int | None = setting(
        None,
        "KV slots; auto: what fits on a GPU; on a CPU and for a GGUF file the model's context, in at most "
        "half of the free memory",
        unit="slots",
        low=1,
        unset="auto",
        is_common=True,
    )
    drafter: str | None = setting(
        None,
        "the verifier's own drafter (docs/targets.md): heads of `forerun heads train`, EAGLE-3 heads, a "
        "small model of the target's vocabulary, or mtp, heads:FOLDER, exits:GAMMA:FILE, exit:K, skip:LIST, "
        "recycling, recycling:shared, jacobi:N, lookahead:W,N,G",
        form="a file, a folder, a hub id or one of the words",
        is_common=True,
        excludes={"tensor_parallel": "a drafter needs the whole target"},
    )
    hint_at: float = setting(
        0.0,
        "share of the layers after which each step sends its likely tokens to the edges "
        "(docs/targets.md); 0: never",
        low=0.0,
        high=1.0,
        has_flag=False,
        excludes=dict.fromkeys(
            ("deterministic", "tensor_parallel"), "it needs steps layer by layer on one device"
        ),
    )
    attention: str = setting(
        "auto",
        "attention backend; auto: triton on a CUDA device, else torch_ref (docs/targets.md)",
        choices=ATTENTIONS,
    )
    deterministic: bool | None = setting(
        None,
        "compute every text bit for bit alike, whatever else is served; auto: of a GGUF target on a "
        "processor, apart from a prompt's earlier replies (docs/determinism.md)",
        unset="auto",
        is_common=True,
        excludes={"tensor_parallel": "sums over ranks round differently"},
    )
    tensor_parallel: bool = setting(False, "divide the target among torchrun's processes")
    check: bool = setting(
        False,
        "load and probe the target, say what was found, and end",
        excludes={"tensor_parallel": "it probes a target in one process"},
    )

    def __post_init__(self) -> None:
        check_section(self)
        self._check_engine()
        if self.deterministic and not self.is_gguf and self.device == "cpu" and not self.threads:
            raise UserError(
                "--deterministic on a CPU needs --threads N: the bits depend on the number of threads, so "
                "machines with different numbers of cores would write different texts"
            )
        if self.deterministic and self.attention == "triton":
            raise UserError("--deterministic has its own attention, not triton; leave --attention out")

    def _check_engine(self) -> None:
        """Raise `UserError` for a setting of the engine that does not run this target."""
        others = TORCH_ONLY if self.is_gguf else LLAMA_ONLY
        usual = {each.name: each.default for each in fields(self)}
        if self.source_kind:
            usual["drafter"] = self.drafter  # it needs no model, so both engines have a use for it
        for name in others:
            if getattr(self, name) != usual[name]:
                flag = SCHEMA.by_name[f"target.{name}"].flag or name
                kind = "a GGUF file, which llama.cpp runs" if self.is_gguf else "no GGUF file"
                raise UserError(f"{flag} has no use here: the target is {kind}; leave {flag} out")

    @property
    def engine_drafter(self) -> str | None:
        """The drafter, if it runs beside the target; None for a source that needs no model."""
        return None if self.source_kind else self.drafter

    @property
    def source_kind(self) -> str | None:
        """The kind of a drafter that needs no model; None for another one, and without one."""
        return drafter_kind(self.drafter or "", SOURCES)

    @property
    def is_gguf(self) -> bool:
        """Whether the target is a GGUF file, which llama.cpp runs."""
        return is_gguf(self.model or "")

    @property
    def path(self) -> str:
        """The folder or id of the model. Raises `UserError` if none is given."""
        if not self.model:
            raise UserError("no target model is named; give --model with a folder or a hub id")
        return self.model

    @property
    def served_name(self) -> str:
        """The model's name for edges: `name`, a folder's or file's own name, or the hub id; never a path."""
        folder = Path(self.path).expanduser()
        if self.is_gguf:
            own = folder.name.partition("@")[0][: -len(".gguf")]
        else:
            own = folder.resolve().name if folder.is_dir() else self.path
        return model_name(self.name or own)


@dataclass(frozen=True, slots=True)
class ServerSection:
    """The server section sets the address for edges and what edges may request."""

    listen: str = setting(
        "127.0.0.1:50051",
        "address for edges; port 0 picks one",
        form="HOST:PORT",
        check=_check_address,
        is_common=True,
    )
    grace: float = setting(10.0, "time for sessions to leave after SIGTERM", unit="seconds", low=0.0)
    tls_cert: Path | None = setting(
        None,
        "certificate chain in PEM; edges then need its CA; none: plain text",
        is_path=True,
        is_common=True,
        needs={"tls_key": ""},
    )
    tls_key: Path | None = setting(
        None,
        "private key of the certificate, in PEM",
        is_path=True,
        is_common=True,
        needs={"tls_cert": ""},
    )
    tls_client_ca: Path | None = setting(
        None,
        "CA in PEM that must have signed every edge's certificate",
        is_path=True,
        is_common=True,
        needs={"tls_cert": "without TLS edges send no certificate"},
    )
    privacy: str = setting(
        Privacy.PADDED.title,
        "least privacy of message sizes; padded: all messages of a direction have one size; off: edges may "
        "still request padding (docs/guarantees.md)",
        choices=LEVELS,
    )
    sampling_defaults: str = setting(
        "model",
        "source of sampling values for requests that name none; model: the model's generation_config; "
        "openai: temperature 1 and nothing else",
        choices=("model", "openai"),
    )
    allow_rule: tuple[str, ...] = setting(
        (),
        "lossy acceptance rules that sessions may request, under which texts differ from the target's: "
        f"{LOSSY}; docs/schemes.md",
        form="a rule",
        check=_check_rules,
    )
    judge: Path | None = setting(
        None, "judge of the rule `judge`, made by `forerun judge train`", is_path=True
    )

    def __post_init__(self) -> None:
        check_section(self)
        if (AcceptanceRule.JUDGE.title in self.allow_rule) != (self.judge is not None):
            raise UserError(
                "--judge needs --allow-rule judge, and --allow-rule judge needs --judge; give both"
            )

    def read_judge(self) -> Judge | None:
        """Read the judge's file, if there is one. Raises `UserError`."""
        if self.judge is None:
            return None
        try:
            text = read_bytes(self.judge, "the judge", JUDGE_BYTES).decode("utf-8")
            rule: Any = rule_of(AcceptanceRule.JUDGE)
            judge: Judge = rule.read_judge(text)
            return judge
        except UnicodeDecodeError as error:
            raise UserError(f"the judge {self.judge} is not UTF-8 text ({error})") from error

    @property
    def rules(self) -> tuple[AcceptanceRule, ...]:
        return tuple(dict.fromkeys((*LOSSLESS, *map(rule_named, self.allow_rule))))


@dataclass(frozen=True, slots=True)
class IdentitySection:
    """The identity section sets how callers are identified, in one way at most. With two ways that disagree
    an attacker could choose."""

    tenant_header: str = setting(
        "",
        "metadata entry that names the tenant; only behind a proxy that sets it for every client",
        excludes={"tenant_certificate": BOTH, "token_keys": BOTH, "secret_file": BOTH},
    )
    tenant_certificate: str | None = setting(
        None,
        "take the tenant from the client certificate's URI spiffe://DOMAIN/tenant/NAME; without a value: any "
        "domain for which --tls-client-ca signs",
        form="DOMAIN",
        alone="",
        excludes={"token_keys": BOTH, "secret_file": BOTH},
    )
    token_keys: Path | None = setting(
        None,
        "JWKS of public keys (EdDSA, ES256, RS256) for tokens that name the tenant; reread when it changes",
        is_path=True,
        is_common=True,
        needs={"token_audience": "else a token for another service of the issuer would be accepted"},
        excludes={"secret_file": BOTH},
    )
    secret_file: Path | None = setting(
        None,
        "file of secrets, one a line, of which callers need one; reread when it changes (--pair makes one)",
        is_path=True,
    )
    token_audience: str = setting(
        "",
        "required `aud` claim of tokens; --token-keys needs it",
        is_common=True,
        needs={"token_keys": "without keys no token can be checked"},
    )
    token_issuer: str = setting("", "required `iss` claim of tokens; empty: any issuer with a key")
    tenant_limits: Path | None = setting(
        None, "TOML file with each tenant's quota; reread when it changes", is_path=True
    )
    denied: Path | None = setting(
        None,
        "file of denied certificates, tokens and tenants, one a line; reread when it changes",
        is_path=True,
    )
    training_log: Path | None = setting(
        None,
        "folder for texts of tenants that agree (docs/verifier.md)",
        is_path=True,
        needs={"tenant_limits": "tenants agree there"},
    )
    training_log_mb: int = setting(256, "size of that folder", unit="MB", low=1, has_flag=False)
    training_log_key: Path | None = setting(
        None,
        "file of 64 hex digits that encrypts it",
        is_path=True,
        has_flag=False,
        needs={"training_log": ""},
    )

    def __post_init__(self) -> None:
        check_section(self)
        ways = {
            "--tenant-header": bool(self.tenant_header),
            "--tenant-certificate": self.tenant_certificate is not None,
            "--token-keys": self.token_keys is not None,
        }
        if self.denied is not None and not any(ways.values()):
            raise UserError(
                f"--denied needs one of {', '.join(ways)}: callers must be identified to be denied"
            )


@dataclass(frozen=True, slots=True)
class OperationsSection:
    """The operations section sets the operator's port, the log and the process."""

    http: str = setting(
        "",
        "address of /metrics, /livez, /readyz and /sessions over plain HTTP; empty: off",
        form="HOST:PORT",
        check=_check_address,
        is_common=True,
    )
    log_level: str | None = setting(
        None,
        "least level logged to standard error; unset: info for Forerun's modules, warning for libraries",
        choices=LOG_LEVELS,
        is_common=True,
    )
    log_format: str = setting("text", "text lines, or a JSON object a line", choices=LOG_FORMATS)
    json: bool = setting(False, "print one line of JSON in place of sentences once the verifier listens")

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """Holds every setting of a verifier. Recall is on here and off in a bare `SchedulerConfig`."""

    target: TargetSection = field(default_factory=TargetSection)
    server: ServerSection = field(default_factory=ServerSection)
    identity: IdentitySection = field(default_factory=IdentitySection)
    limits: SchedulerConfig = field(default_factory=lambda: SchedulerConfig(recall=True))
    operations: OperationsSection = field(default_factory=OperationsSection)

    def __post_init__(self) -> None:
        if self.identity.tenant_certificate is not None and self.server.tls_client_ca is None:
            raise UserError(
                "--tenant-certificate needs --tls-client-ca: without it client certificates are not verified"
            )
        if self.identity.secret_file is not None and self.server.tls_cert is None:
            raise UserError("--secret-file needs --tls-cert: without TLS the secret travels in the clear")
        is_plain = not self.target.is_gguf and not self.target.tensor_parallel
        if AcceptanceRule.REFLECTIVE in self.server.rules and not is_plain:
            raise UserError(
                "--allow-rule reflective needs a target in Hugging Face format, and no --tensor-parallel; "
                "leave the rule out"
            )
        if AcceptanceRule.REFLECTIVE in self.server.rules and self.target.hint_at:
            raise UserError("hint_at and --allow-rule reflective exclude each other; leave one of them out")

    @property
    def scheduler(self) -> SchedulerConfig:
        """The limits, with the acceptance rules that sessions may request, their judge, and chunks for the
        device. Reads the judge's file. Raises `UserError`."""
        chunk, target = self.limits.prefill_chunk, self.target
        if chunk is None and target.device.startswith("cuda") and not target.deterministic:
            chunk = CUDA_CHUNK
        judge = self.server.read_judge()
        is_plain = not (target.is_gguf or target.deterministic or target.tensor_parallel)
        if judge is not None and judge.num_hidden and not is_plain:
            raise UserError(
                "--judge reads hidden states, which only a target in Hugging Face format gives, without "
                "--deterministic and --tensor-parallel; leave these out, or train with --law-only"
            )
        limits = replace(self.limits, rules=self.server.rules, judge=judge, prefill_chunk=chunk)
        if kind := target.source_kind:
            missing = UserError(f"no installed package offers the drafter {kind}")
            found = offer(SOURCES, kind, missing)(target.drafter)
            most = max(limits.max_nodes_per_session, found.num_rows + 1)
            limits = replace(limits, sources=(found.source,), max_nodes_per_session=most)
        return limits


SCHEMA = Schema(VerifierConfig, "FORERUN_VERIFY_", is_flat=True)
