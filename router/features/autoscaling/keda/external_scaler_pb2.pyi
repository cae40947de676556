from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScaledObject(_message.Message):
    __slots__ = ("name", "namespace", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("active",)
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    active: bool
    def __init__(self, active: _Optional[bool] = ...) -> None: ...

class MetricSpec(_message.Message):
    __slots__ = ("name", "whole_target", "target")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHOLE_TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    name: str
    whole_target: int
    target: float
    def __init__(self, name: _Optional[str] = ..., whole_target: _Optional[int] = ..., target: _Optional[float] = ...) -> None: ...

class MetricSpecs(_message.Message):
    __slots__ = ("specs",)
    SPECS_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[MetricSpec]
    def __init__(self, specs: _Optional[_Iterable[_Union[MetricSpec, _Mapping]]] = ...) -> None: ...

class MetricsQuestion(_message.Message):
    __slots__ = ("scaled_object", "name")
    SCALED_OBJECT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    scaled_object: ScaledObject
    name: str
    def __init__(self, scaled_object: _Optional[_Union[ScaledObject, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class MetricValue(_message.Message):
    __slots__ = ("name", "whole_value", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHOLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    whole_value: int
    value: float
    def __init__(self, name: _Optional[str] = ..., whole_value: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class MetricValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[MetricValue]
    def __init__(self, values: _Optional[_Iterable[_Union[MetricValue, _Mapping]]] = ...) -> None: ...
