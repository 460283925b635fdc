from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Round(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_UNSPECIFIED: _ClassVar[Round]
    ROUND_POSTERIORS: _ClassVar[Round]
    ROUND_EMBEDDINGS: _ClassVar[Round]
ROUND_UNSPECIFIED: Round
ROUND_POSTERIORS: Round
ROUND_EMBEDDINGS: Round

class DescribeRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("name", "classes", "models", "codecs", "revision", "max_samples", "max_message_bytes", "certificate_not_after", "masking")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_NOT_AFTER_FIELD_NUMBER: _ClassVar[int]
    MASKING_FIELD_NUMBER: _ClassVar[int]
    name: str
    classes: _containers.RepeatedScalarFieldContainer[str]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    codecs: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    max_samples: int
    max_message_bytes: int
    certificate_not_after: int
    masking: Masking
    def __init__(self, name: _Optional[str] = ..., classes: _Optional[_Iterable[str]] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., codecs: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., max_samples: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., certificate_not_after: _Optional[int] = ..., masking: _Optional[_Union[Masking, _Mapping]] = ...) -> None: ...

class Masking(_message.Message):
    __slots__ = ("public_key", "peers", "min_roster", "max_weight_share")
    class PeersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    MIN_ROSTER_FIELD_NUMBER: _ClassVar[int]
    MAX_WEIGHT_SHARE_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    peers: _containers.ScalarMap[str, bytes]
    min_roster: int
    max_weight_share: float
    def __init__(self, public_key: _Optional[bytes] = ..., peers: _Optional[_Mapping[str, bytes]] = ..., min_roster: _Optional[int] = ..., max_weight_share: _Optional[float] = ...) -> None: ...

class MaskPlan(_message.Message):
    __slots__ = ("members", "eps")
    class Member(_message.Message):
        __slots__ = ("name", "model", "weight")
        NAME_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        WEIGHT_FIELD_NUMBER: _ClassVar[int]
        name: str
        model: str
        weight: float
        def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[MaskPlan.Member]
    eps: float
    def __init__(self, members: _Optional[_Iterable[_Union[MaskPlan.Member, _Mapping]]] = ..., eps: _Optional[float] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("hash", "dimension")
    HASH_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    hash: str
    dimension: int
    def __init__(self, hash: _Optional[str] = ..., dimension: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("shape", "encoding", "data")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    encoding: str
    data: bytes
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., encoding: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("correlation", "request_id", "round", "model", "codec", "ids", "cancel", "mask_plan", "mask_nonce", "traceparent")
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    MASK_PLAN_FIELD_NUMBER: _ClassVar[int]
    MASK_NONCE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    correlation: int
    request_id: str
    round: Round
    model: str
    codec: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    cancel: bool
    mask_plan: bytes
    mask_nonce: bytes
    traceparent: str
    def __init__(self, correlation: _Optional[int] = ..., request_id: _Optional[str] = ..., round: _Optional[_Union[Round, str]] = ..., model: _Optional[str] = ..., codec: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., cancel: _Optional[bool] = ..., mask_plan: _Optional[bytes] = ..., mask_nonce: _Optional[bytes] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("correlation", "answer", "failure")
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    correlation: int
    answer: Answer
    failure: Failure
    def __init__(self, correlation: _Optional[int] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("model", "missing", "values", "withheld")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    model: str
    missing: _containers.RepeatedScalarFieldContainer[int]
    values: Tensor
    withheld: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., missing: _Optional[_Iterable[int]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ..., withheld: _Optional[_Iterable[int]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "retry_after_seconds")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODE_UNSPECIFIED: _ClassVar[Failure.Code]
        CODE_INVALID: _ClassVar[Failure.Code]
        CODE_UNKNOWN_MODEL: _ClassVar[Failure.Code]
        CODE_QUOTA: _ClassVar[Failure.Code]
        CODE_TOO_LARGE: _ClassVar[Failure.Code]
        CODE_UNAVAILABLE: _ClassVar[Failure.Code]
        CODE_INTERNAL: _ClassVar[Failure.Code]
        CODE_AGREEMENT: _ClassVar[Failure.Code]
    CODE_UNSPECIFIED: Failure.Code
    CODE_INVALID: Failure.Code
    CODE_UNKNOWN_MODEL: Failure.Code
    CODE_QUOTA: Failure.Code
    CODE_TOO_LARGE: Failure.Code
    CODE_UNAVAILABLE: Failure.Code
    CODE_INTERNAL: Failure.Code
    CODE_AGREEMENT: Failure.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    code: Failure.Code
    message: str
    retry_after_seconds: float
    def __init__(self, code: _Optional[_Union[Failure.Code, str]] = ..., message: _Optional[str] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("number", "kind", "options", "tensors")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    options: str
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., options: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...

class TaskReply(_message.Message):
    __slots__ = ("number", "progress", "done", "failure")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    progress: str
    done: TaskResult
    failure: Failure
    def __init__(self, number: _Optional[int] = ..., progress: _Optional[str] = ..., done: _Optional[_Union[TaskResult, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class TaskResult(_message.Message):
    __slots__ = ("values", "tensors")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    values: str
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    def __init__(self, values: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ...) -> None: ...
