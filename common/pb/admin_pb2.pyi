from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_MODE_UNSPECIFIED: _ClassVar[SessionMode]
    SESSION_MODE_PREFILL: _ClassVar[SessionMode]
    SESSION_MODE_DECODE: _ClassVar[SessionMode]
    SESSION_MODE_WAITING: _ClassVar[SessionMode]
    SESSION_MODE_PREEMPTED: _ClassVar[SessionMode]
SESSION_MODE_UNSPECIFIED: SessionMode
SESSION_MODE_PREFILL: SessionMode
SESSION_MODE_DECODE: SessionMode
SESSION_MODE_WAITING: SessionMode
SESSION_MODE_PREEMPTED: SessionMode

class ListSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("model", "version", "uptime_us", "draining", "max_sessions", "totals", "slots", "sessions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_US_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    uptime_us: int
    draining: bool
    max_sessions: int
    totals: VerifierTotals
    slots: KvSlots
    sessions: _containers.RepeatedCompositeFieldContainer[LiveSession]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., uptime_us: _Optional[int] = ..., draining: _Optional[bool] = ..., max_sessions: _Optional[int] = ..., totals: _Optional[_Union[VerifierTotals, _Mapping]] = ..., slots: _Optional[_Union[KvSlots, _Mapping]] = ..., sessions: _Optional[_Iterable[_Union[LiveSession, _Mapping]]] = ...) -> None: ...

class VerifierTotals(_message.Message):
    __slots__ = ("steps", "step_time_us", "queue_time_us", "queued", "rows", "tips", "drafts", "won", "committed", "accepted", "prompt_tokens", "cached_tokens", "opened", "refused", "preempted", "bytes_received", "bytes_sent")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TIPS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    WON_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    steps: int
    step_time_us: int
    queue_time_us: int
    queued: int
    rows: int
    tips: int
    drafts: int
    won: int
    committed: int
    accepted: int
    prompt_tokens: int
    cached_tokens: int
    opened: int
    refused: int
    preempted: int
    bytes_received: int
    bytes_sent: int
    def __init__(self, steps: _Optional[int] = ..., step_time_us: _Optional[int] = ..., queue_time_us: _Optional[int] = ..., queued: _Optional[int] = ..., rows: _Optional[int] = ..., tips: _Optional[int] = ..., drafts: _Optional[int] = ..., won: _Optional[int] = ..., committed: _Optional[int] = ..., accepted: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., opened: _Optional[int] = ..., refused: _Optional[int] = ..., preempted: _Optional[int] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ...) -> None: ...

class KvSlots(_message.Message):
    __slots__ = ("free", "cached", "shared", "owned", "available")
    FREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    free: int
    cached: int
    shared: int
    owned: int
    available: int
    def __init__(self, free: _Optional[int] = ..., cached: _Optional[int] = ..., shared: _Optional[int] = ..., owned: _Optional[int] = ..., available: _Optional[int] = ...) -> None: ...

class LiveSession(_message.Message):
    __slots__ = ("stream", "session_id", "tenant", "mode", "age_us", "prompt_tokens", "resumed_tokens", "max_tokens", "cached_tokens", "committed", "accepted", "steps", "rows", "drafts", "won", "silent_us", "first_token_us", "credit", "lag", "live_nodes", "slots", "promised_slots", "preempted", "bytes_received", "bytes_sent")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    WON_FIELD_NUMBER: _ClassVar[int]
    SILENT_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LIVE_NODES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    PROMISED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    stream: int
    session_id: str
    tenant: str
    mode: SessionMode
    age_us: int
    prompt_tokens: int
    resumed_tokens: int
    max_tokens: int
    cached_tokens: int
    committed: int
    accepted: int
    steps: int
    rows: int
    drafts: int
    won: int
    silent_us: int
    first_token_us: int
    credit: int
    lag: int
    live_nodes: int
    slots: int
    promised_slots: int
    preempted: int
    bytes_received: int
    bytes_sent: int
    def __init__(self, stream: _Optional[int] = ..., session_id: _Optional[str] = ..., tenant: _Optional[str] = ..., mode: _Optional[_Union[SessionMode, str]] = ..., age_us: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., resumed_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., committed: _Optional[int] = ..., accepted: _Optional[int] = ..., steps: _Optional[int] = ..., rows: _Optional[int] = ..., drafts: _Optional[int] = ..., won: _Optional[int] = ..., silent_us: _Optional[int] = ..., first_token_us: _Optional[int] = ..., credit: _Optional[int] = ..., lag: _Optional[int] = ..., live_nodes: _Optional[int] = ..., slots: _Optional[int] = ..., promised_slots: _Optional[int] = ..., preempted: _Optional[int] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ...) -> None: ...
