"""The gRPC health service (grpc.health.v1) of the picker, which Envoy's health checks and Kubernetes' probes query.

`liveness` reports that the process answers. Every other service reports whether gateways should use this picker:
not before a ready engine has been seen, and not once the picker is stopping. When no engine is ready later, the
picker keeps reporting SERVING and refuses each request in its client's dialect, which a gateway without a picker
cannot do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from router.picker.grpc_stream import INVALID_ARGUMENT, NOT_FOUND, GrpcHandler, GrpcStream
from router.picker.health_pb2 import NOT_SERVING, SERVICE_UNKNOWN, SERVING, HealthRequest, HealthResponse
from router.picker.names import EXT_PROC, HEALTH

READY = frozenset(("", "readiness", EXT_PROC, "inference-extension"))  # the last: llm-d's probes with one replica
LIVENESS = "liveness"
POLL_S = 0.2


class PickerHealth:
    """Answers from `unready_reason`, which returns None when an engine is ready, and from `stopping`."""

    def __init__(self, unready_reason: Callable[[], str | None], stopping: Callable[[], bool]) -> None:
        self._unready_reason = unready_reason
        self._stopping = stopping
        self._began = False
        self._watches: dict[_HealthCall, None] = {}  # in the order in which they began
        self._timer: asyncio.TimerHandle | None = None

    def services(self) -> Mapping[bytes, Callable[[GrpcStream], GrpcHandler]]:
        """Return the factories of the handlers of the service's two methods, by path."""
        return {
            f"/{HEALTH}/Check".encode(): lambda stream: _HealthCall(self, stream, watches=False),
            f"/{HEALTH}/Watch".encode(): lambda stream: _HealthCall(self, stream, watches=True),
        }

    def status(self, service: str) -> int:
        """Return the serving status of `service`."""
        if service == LIVENESS:
            return SERVING
        if service not in READY:
            return SERVICE_UNKNOWN
        self._began = self._began or self._unready_reason() is None
        return SERVING if self._began and not self._stopping() else NOT_SERVING

    def watch(self, call: _HealthCall) -> None:
        """Notify `call` of changes from now on until `leave`."""
        self._watches[call] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)

    def leave(self, call: _HealthCall) -> None:
        self._watches.pop(call, None)

    def _poll(self) -> None:
        """Notify all watching calls: one timer and one evaluation of each service serve thousands."""
        self._timer = None
        statuses = {service: self.status(service) for service in {call.service for call in self._watches}}
        for call in list(self._watches):
            call.tell(statuses[call.service])
        if self._watches:
            self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)


class _HealthCall:
    """One query; a watch is notified of changes until its caller leaves."""

    def __init__(self, health: PickerHealth, stream: GrpcStream, *, watches: bool) -> None:
        self._health = health
        self._stream = stream
        self._watches = watches
        self.service = ""
        self._last_sent: int | None = None

    def on_message(self, data: bytes) -> None:
        try:
            self.service = HealthRequest.FromString(data).service
        except DecodeError:
            self._health.leave(self)
            self._stream.finish(INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        status = self._health.status(self.service)
        if self._watches:
            self.tell(status)
            self._health.watch(self)
        elif status == SERVICE_UNKNOWN:
            self._stream.finish(NOT_FOUND, "no such service")
        else:
            self._stream.send(_encode(status))
            self._stream.finish()

    def tell(self, status: int) -> None:
        """Send the status of the service, unless it was the last one sent."""
        if status != self._last_sent:
            self._last_sent = status
            self._stream.send(_encode(status))

    def on_half_close(self) -> None:
        pass  # the query has arrived

    def on_gone(self) -> None:
        self._health.leave(self)


def _encode(status: int) -> bytes:
    return HealthResponse(status=status).SerializeToString()  # type: ignore[arg-type]
