from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Privacy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIVACY_UNSPECIFIED: _ClassVar[Privacy]
    PRIVACY_OFF: _ClassVar[Privacy]
    PRIVACY_PADDED: _ClassVar[Privacy]

class AcceptanceRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_RULE_UNSPECIFIED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_COUPLED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_REJECTION: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_BLOCK: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_SPECINFER: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_LOSSY_LENIENCE: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_LOSSY_TYPICAL: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_LOSSY_TOPK_GAP: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_LOSSY_BILD: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_SPECTR: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_SPECTR_OT: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_LOSSY_JUDGE: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_LOSSY_REFLECTIVE: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_LOSSY_CONTRASTIVE: _ClassVar[AcceptanceRule]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class Fault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAULT_UNSPECIFIED: _ClassVar[Fault]
    FAULT_USER: _ClassVar[Fault]
    FAULT_CLIENT: _ClassVar[Fault]
    FAULT_SERVER: _ClassVar[Fault]
    FAULT_CAPACITY: _ClassVar[Fault]
    FAULT_UNAVAILABLE: _ClassVar[Fault]
PRIVACY_UNSPECIFIED: Privacy
PRIVACY_OFF: Privacy
PRIVACY_PADDED: Privacy
ACCEPTANCE_RULE_UNSPECIFIED: AcceptanceRule
ACCEPTANCE_RULE_COUPLED: AcceptanceRule
ACCEPTANCE_RULE_REJECTION: AcceptanceRule
ACCEPTANCE_RULE_BLOCK: AcceptanceRule
ACCEPTANCE_RULE_SPECINFER: AcceptanceRule
ACCEPTANCE_RULE_LOSSY_LENIENCE: AcceptanceRule
ACCEPTANCE_RULE_LOSSY_TYPICAL: AcceptanceRule
ACCEPTANCE_RULE_LOSSY_TOPK_GAP: AcceptanceRule
ACCEPTANCE_RULE_LOSSY_BILD: AcceptanceRule
ACCEPTANCE_RULE_SPECTR: AcceptanceRule
ACCEPTANCE_RULE_SPECTR_OT: AcceptanceRule
ACCEPTANCE_RULE_LOSSY_JUDGE: AcceptanceRule
ACCEPTANCE_RULE_LOSSY_REFLECTIVE: AcceptanceRule
ACCEPTANCE_RULE_LOSSY_CONTRASTIVE: AcceptanceRule
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FAULT_UNSPECIFIED: Fault
FAULT_USER: Fault
FAULT_CLIENT: Fault
FAULT_SERVER: Fault
FAULT_CAPACITY: Fault
FAULT_UNAVAILABLE: Fault

class SessionRequest(_message.Message):
    __slots__ = ("open", "propose", "close", "padding")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    open: Open
    propose: Propose
    close: Close
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., propose: _Optional[_Union[Propose, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., padding: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("prompt", "sampling", "fingerprint", "model", "committed", "fill", "session_id", "acceptance", "logprobs", "privacy", "hints")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    fingerprint: bytes
    model: str
    committed: _containers.RepeatedScalarFieldContainer[int]
    fill: bool
    session_id: str
    acceptance: Acceptance
    logprobs: int
    privacy: Privacy
    hints: bool
    def __init__(self, prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., fingerprint: _Optional[bytes] = ..., model: _Optional[str] = ..., committed: _Optional[_Iterable[int]] = ..., fill: _Optional[bool] = ..., session_id: _Optional[str] = ..., acceptance: _Optional[_Union[Acceptance, _Mapping]] = ..., logprobs: _Optional[int] = ..., privacy: _Optional[_Union[Privacy, str]] = ..., hints: _Optional[bool] = ...) -> None: ...

class Acceptance(_message.Message):
    __slots__ = ("rule", "lenience", "epsilon", "delta", "top", "gap", "rollback", "alpha", "beta", "fusion")
    RULE_FIELD_NUMBER: _ClassVar[int]
    LENIENCE_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    FUSION_FIELD_NUMBER: _ClassVar[int]
    rule: AcceptanceRule
    lenience: float
    epsilon: float
    delta: float
    top: int
    gap: float
    rollback: float
    alpha: float
    beta: float
    fusion: float
    def __init__(self, rule: _Optional[_Union[AcceptanceRule, str]] = ..., lenience: _Optional[float] = ..., epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., top: _Optional[int] = ..., gap: _Optional[float] = ..., rollback: _Optional[float] = ..., alpha: _Optional[float] = ..., beta: _Optional[float] = ..., fusion: _Optional[float] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop_token_ids", "ignore_eos", "max_tokens", "seed", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    max_tokens: int
    seed: int
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., grammar: _Optional[str] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token", "bias")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token: int
    bias: float
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("tokens", "logprobs", "parent_deltas", "anchor", "seen_advance", "draft_sizes", "draft_tokens", "draft_counts", "wait_due_us", "wait_most_us")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PARENT_DELTAS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    SEEN_ADVANCE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SIZES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_DUE_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_MOST_US_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: bytes
    parent_deltas: _containers.RepeatedScalarFieldContainer[int]
    anchor: int
    seen_advance: int
    draft_sizes: _containers.RepeatedScalarFieldContainer[int]
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_counts: bytes
    wait_due_us: int
    wait_most_us: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[bytes] = ..., parent_deltas: _Optional[_Iterable[int]] = ..., anchor: _Optional[int] = ..., seen_advance: _Optional[int] = ..., draft_sizes: _Optional[_Iterable[int]] = ..., draft_tokens: _Optional[_Iterable[int]] = ..., draft_counts: _Optional[bytes] = ..., wait_due_us: _Optional[int] = ..., wait_most_us: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("opened", "commit", "drain", "finish", "idle", "hint", "padding")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    commit: Commit
    drain: Drain
    finish: Finish
    idle: Idle
    hint: Hint
    padding: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., idle: _Optional[_Union[Idle, _Mapping]] = ..., hint: _Optional[_Union[Hint, _Mapping]] = ..., padding: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Idle(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Opened(_message.Message):
    __slots__ = ("position", "credit", "hold_us", "privacy", "cached")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    HOLD_US_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    position: int
    credit: int
    hold_us: int
    privacy: Privacy
    cached: int
    def __init__(self, position: _Optional[int] = ..., credit: _Optional[int] = ..., hold_us: _Optional[int] = ..., privacy: _Optional[_Union[Privacy, str]] = ..., cached: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("start", "tokens", "server_made", "echo", "hold_us", "queue_us", "compute_us", "credit", "evaluated", "steps", "logprobs", "top_tokens", "top_logprobs", "guessed")
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SERVER_MADE_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    HOLD_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GUESSED_FIELD_NUMBER: _ClassVar[int]
    start: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    server_made: bytes
    echo: int
    hold_us: int
    queue_us: int
    compute_us: int
    credit: int
    evaluated: int
    steps: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    guessed: bytes
    def __init__(self, start: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., server_made: _Optional[bytes] = ..., echo: _Optional[int] = ..., hold_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., credit: _Optional[int] = ..., evaluated: _Optional[int] = ..., steps: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., guessed: _Optional[bytes] = ...) -> None: ...

class Hint(_message.Message):
    __slots__ = ("node", "anchor", "path", "tokens")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    node: int
    anchor: int
    path: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node: _Optional[int] = ..., anchor: _Optional[int] = ..., path: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("grace_us",)
    GRACE_US_FIELD_NUMBER: _ClassVar[int]
    grace_us: int
    def __init__(self, grace_us: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "position")
    REASON_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    position: int
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., position: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("include_vocabulary", "include_chat_template")
    INCLUDE_VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    include_vocabulary: bool
    include_chat_template: bool
    def __init__(self, include_vocabulary: _Optional[bool] = ..., include_chat_template: _Optional[bool] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_version", "model", "vocab_size", "max_positions", "eos_token_ids", "fingerprint", "vocabulary", "acceptance_rules", "version", "load", "chat_template", "bos_token", "eos_token", "grammars", "max_session_positions", "max_text_tokens", "sampling_defaults", "repeats", "step_times")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RULES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSION_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model: str
    vocab_size: int
    max_positions: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    fingerprint: bytes
    vocabulary: Vocabulary
    acceptance_rules: _containers.RepeatedScalarFieldContainer[AcceptanceRule]
    version: str
    load: Load
    chat_template: str
    bos_token: str
    eos_token: str
    grammars: bool
    max_session_positions: int
    max_text_tokens: int
    sampling_defaults: SamplingDefaults
    repeats: bool
    step_times: _containers.RepeatedCompositeFieldContainer[StepTime]
    def __init__(self, protocol_version: _Optional[int] = ..., model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_positions: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., fingerprint: _Optional[bytes] = ..., vocabulary: _Optional[_Union[Vocabulary, _Mapping]] = ..., acceptance_rules: _Optional[_Iterable[_Union[AcceptanceRule, str]]] = ..., version: _Optional[str] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., chat_template: _Optional[str] = ..., bos_token: _Optional[str] = ..., eos_token: _Optional[str] = ..., grammars: _Optional[bool] = ..., max_session_positions: _Optional[int] = ..., max_text_tokens: _Optional[int] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., repeats: _Optional[bool] = ..., step_times: _Optional[_Iterable[_Union[StepTime, _Mapping]]] = ...) -> None: ...

class StepTime(_message.Message):
    __slots__ = ("rows", "time_us")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    rows: int
    time_us: int
    def __init__(self, rows: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("sessions", "max_sessions", "draining", "turn_us")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    TURN_US_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    max_sessions: int
    draining: bool
    turn_us: int
    def __init__(self, sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ..., draining: _Optional[bool] = ..., turn_us: _Optional[int] = ...) -> None: ...

class Vocabulary(_message.Message):
    __slots__ = ("pieces", "absent")
    PIECES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedScalarFieldContainer[bytes]
    absent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pieces: _Optional[_Iterable[bytes]] = ..., absent: _Optional[_Iterable[int]] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("fault", "retry_after_us", "server_fingerprint")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_US_FIELD_NUMBER: _ClassVar[int]
    SERVER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fault: Fault
    retry_after_us: int
    server_fingerprint: bytes
    def __init__(self, fault: _Optional[_Union[Fault, str]] = ..., retry_after_us: _Optional[int] = ..., server_fingerprint: _Optional[bytes] = ...) -> None: ...
