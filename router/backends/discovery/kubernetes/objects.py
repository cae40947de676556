"""The parts of Kubernetes objects that discovery reads. Fields not listed here are skipped when JSON is decoded.

Field names are those of the API: https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class ObjectMetadata(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class PodCondition(msgspec.Struct, frozen=True):
    type: str
    status: str


class PodStatus(msgspec.Struct, rename="camel", frozen=True):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: Sequence[PodCondition] | None = None


class Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata
    status: PodStatus = PodStatus()


class LabelSelector(msgspec.Struct, rename="camel", frozen=True):
    match_labels: dict[str, str]


class TargetPort(msgspec.Struct, frozen=True):
    number: int


class InferencePoolSpec(msgspec.Struct, rename="camel", frozen=True):
    selector: LabelSelector
    target_ports: Sequence[TargetPort]


class InferencePool(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata
    spec: InferencePoolSpec


class ListMetadata(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""
    next_page: str | None = msgspec.field(default=None, name="continue")


class ObjectPage(msgspec.Struct, frozen=True):
    """One page of a list; the items are decoded by kind."""

    metadata: ListMetadata
    items: Sequence[msgspec.Raw]


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch; the object is decoded by type and kind."""

    type: str
    object: msgspec.Raw


class BookmarkObject(msgspec.Struct, frozen=True):
    metadata: ObjectMetadata


class ApiStatus(msgspec.Struct, frozen=True):
    """The reason why the API server refuses a request."""

    message: str = ""
    reason: str = ""
    code: int = 0
