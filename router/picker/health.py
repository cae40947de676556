"""The gRPC health service (grpc.health.v1) of the picker: Envoy's health checks and Kubernetes' probes ask it.

`liveness` says that the process answers. Everything else says whether gateways should ask this picker: not before it
has seen a ready engine, and not once it stops. When no engine is ready later, it still answers: each request is refused
in its client's dialect, which a gateway without a picker cannot do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from router.picker.names import EXT_PROC

READY = frozenset(("", "readiness", EXT_PROC, "inference-extension"))  # the last: llm-d's probes with one replica
LIVENESS = "liveness"
POLL_S = 0.2


class PickerHealth(health_pb2_grpc.HealthServicer):
    """Answers from `unready_reason`, which returns `None` when an engine is ready, and from `stopping`."""

    def __init__(self, unready_reason: Callable[[], str | None], stopping: Callable[[], bool]) -> None:
        self._unready_reason = unready_reason
        self._stopping = stopping
        self._began = False

    def status(self, service: str) -> Any:
        """Return the serving status of `service`."""
        if service == LIVENESS:
            return HealthCheckResponse.SERVING
        if service not in READY:
            return HealthCheckResponse.SERVICE_UNKNOWN
        self._began = self._began or self._unready_reason() is None
        return HealthCheckResponse.SERVING if self._began and not self._stopping() else HealthCheckResponse.NOT_SERVING

    async def Check(self, request: HealthCheckRequest, context: Any) -> HealthCheckResponse:
        """Answer for one service; NOT_FOUND for an unknown one."""
        status = self.status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return HealthCheckResponse(status=status)

    async def Watch(self, request: HealthCheckRequest, context: Any) -> AsyncIterator[HealthCheckResponse]:
        """Send the status of a service now and when it changes, until the caller leaves."""
        sent = None
        while True:
            if (status := self.status(request.service)) != sent:
                sent = status
                yield HealthCheckResponse(status=status)
            await asyncio.sleep(POLL_S)
