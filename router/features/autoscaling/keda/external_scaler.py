"""External scaler for KEDA. Each call is about one model and role, given by the metadata of a trigger.

    GetMetricSpec    one instance for each 1 of `warmroute_desired_instances`, so that the HPA's count is the metric
    GetMetrics       how many instances are wanted
    IsActive         whether any instance is wanted: KEDA scales to and from zero by it
    StreamIsActive   the same, now and whenever it changes: at once when a first request waits for a model that sleeps

An unknown count is an error, never 0: KEDA then keeps the present count, or uses its `fallback`. A stream sends
nothing while the count is unknown. The count of a model that sleeps is not unknown: the model is unused, so no
instance is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from router.errors import quote_name
from router.features.autoscaling.keda.external_scaler_pb2 import (
    Activity,
    MetricSpec,
    MetricSpecs,
    MetricsQuestion,
    MetricValue,
    MetricValues,
    ScaledObject,
)
from router.features.autoscaling.scaling import RoleKey, Scaling
from router.picker.grpc_listener import Services
from router.picker.grpc_stream import EXHAUSTED, INVALID_ARGUMENT, NOT_FOUND, UNAVAILABLE, GrpcStream

SERVICE = "externalscaler.ExternalScaler"
METRIC = "warmroute_desired_instances"
ROLES = ("both", "prefill", "decode")
MOST_STREAMS = 1_000  # KEDA has one for each trigger; all are visited whenever a count may have changed


class ScalerRefusal(NamedTuple):
    """A gRPC status other than OK, and the reason."""

    status: int
    reason: str


class ExternalScaler:
    """Answers KEDA's calls from `scaling`."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._streams: set[_ActivityStream] = set()
        scaling.on_change.append(self._tell)

    def services(self) -> Services:
        """Return the factories of the gRPC methods' handlers, by path."""
        return {
            f"/{SERVICE}/GetMetricSpec".encode(): lambda stream: _Question(stream, self.describe_metric),
            f"/{SERVICE}/GetMetrics".encode(): lambda stream: _Question(stream, self.measure),
            f"/{SERVICE}/IsActive".encode(): lambda stream: _Question(stream, self.tell_activity),
            f"/{SERVICE}/StreamIsActive".encode(): lambda stream: _ActivityStream(stream, self, self._streams),
        }

    def describe_metric(self, data: bytes) -> bytes | ScalerRefusal:
        """Answer GetMetricSpec, even if the count is unknown, because KEDA builds the HPA from the answer. Raises
        `DecodeError`.
        """
        key = read_key(ScaledObject.FromString(data))
        if isinstance(key, ScalerRefusal):
            return key
        return MetricSpecs(specs=[MetricSpec(name=METRIC, whole_target=1, target=1.0)]).SerializeToString()

    def measure(self, data: bytes) -> bytes | ScalerRefusal:
        """Answer GetMetrics. Raises `DecodeError`."""
        count = self._count(MetricsQuestion.FromString(data).scaled_object)
        if isinstance(count, ScalerRefusal):
            return count
        return MetricValues(values=[MetricValue(name=METRIC, whole_value=count, value=count)]).SerializeToString()

    def tell_activity(self, data: bytes) -> bytes | ScalerRefusal:
        """Answer IsActive. Raises `DecodeError`."""
        count = self._count(ScaledObject.FromString(data))
        return count if isinstance(count, ScalerRefusal) else encode_activity(count > 0)

    def follow(self, key: RoleKey) -> None:
        """Begin following the model and role of a stream."""
        self._scaling.follow(key)

    def is_active(self, key: RoleKey) -> bool | None:
        """Return whether any instance is wanted; None while that is unknown."""
        count = self._scaling.count(key)
        return None if count is None else count > 0

    def _count(self, object: ScaledObject) -> int | ScalerRefusal:
        key = read_key(object)
        if isinstance(key, ScalerRefusal):
            return key
        known, count = self._scaling.follow(key), self._scaling.count(key)
        if count is not None:
            return count
        model, role = quote_name(key[0], 60), key[1]
        if known:
            return ScalerRefusal(UNAVAILABLE, f"{model}, {role}: not seen long enough yet")
        return ScalerRefusal(NOT_FOUND, f"{model}, {role}: there is no instance")

    def _tell(self) -> None:
        for stream in list(self._streams):
            stream.tell()


def read_key(object: ScaledObject) -> RoleKey | ScalerRefusal:
    """Return the model and role of a trigger."""
    model, role = object.metadata.get("model", ""), object.metadata.get("role", ROLES[0])
    if not model:
        return ScalerRefusal(INVALID_ARGUMENT, "the trigger's metadata need `model`, the name of the base model")
    if role not in ROLES:
        return ScalerRefusal(INVALID_ARGUMENT, f"`role` of the trigger's metadata is one of {', '.join(ROLES)}")
    return model, role


def encode_activity(active: bool) -> bytes:
    return Activity(active=active).SerializeToString()


class _Question:
    """A call that is answered once."""

    def __init__(self, stream: GrpcStream, answer: Callable[[bytes], bytes | ScalerRefusal]) -> None:
        self._stream = stream
        self._answer = answer

    def on_message(self, data: bytes) -> None:
        try:
            answer = self._answer(data)
        except DecodeError:
            answer = ScalerRefusal(INVALID_ARGUMENT, "the message cannot be read")
        if isinstance(answer, ScalerRefusal):
            self._stream.finish(*answer)
        else:
            self._stream.send(answer)
            self._stream.finish()

    def on_half_close(self) -> None:
        pass  # the question has come

    def on_gone(self) -> None:
        pass


class _ActivityStream:
    """A call that receives changes until its caller leaves. `open` contains all such calls."""

    def __init__(self, stream: GrpcStream, scaler: ExternalScaler, open: set[_ActivityStream]) -> None:
        self._stream = stream
        self._scaler = scaler
        self._open = open
        self._key: RoleKey = "", ""
        self._last_sent: bool | None = None

    def on_message(self, data: bytes) -> None:
        try:
            key = read_key(ScaledObject.FromString(data))
        except DecodeError:
            key = ScalerRefusal(INVALID_ARGUMENT, "the message cannot be read")
        if not isinstance(key, ScalerRefusal) and len(self._open) >= MOST_STREAMS:
            key = ScalerRefusal(EXHAUSTED, f"{MOST_STREAMS:,} streams are open already")
        if isinstance(key, ScalerRefusal):
            self._stream.finish(*key)
            return
        self._key = key
        self._open.add(self)
        self._scaler.follow(key)
        self.tell()

    def tell(self) -> None:
        """Send whether the model is active, unless that is unknown or unchanged since the last message."""
        active = self._scaler.is_active(self._key)
        if active is not None and active != self._last_sent:
            self._last_sent = active
            self._stream.send(encode_activity(active))

    def on_half_close(self) -> None:
        pass  # the question has come

    def on_gone(self) -> None:
        self._open.discard(self)
