"""KEDA's side of an external scaler, over real gRPC.

async with Keda.connect(port) as keda:
    await keda.is_active(model="m")                 whether it is, or the status of gRPC with which that was refused
    changes = keda.watch(model="m")                 await changes.read()
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from router.features.autoscaling.keda.external_scaler import METRIC, SERVICE
from router.features.autoscaling.keda.external_scaler_pb2 import (
    Activity,
    MetricSpecs,
    MetricsQuestion,
    MetricValues,
    ScaledObject,
)

TIMEOUT_S = 60.0


def trigger(**metadata: str) -> ScaledObject:
    return ScaledObject(name="vllm", namespace="llm", metadata={"scalerAddress": "router:9005"} | metadata)


class Changes:
    """The answers of StreamIsActive."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bool | grpc.StatusCode:
        """Return the next one, or how the call ended."""
        try:
            return bool((await self._call.read()).active)
        except grpc.aio.AioRpcError as error:
            return error.code()

    def leave(self) -> None:
        self._call.cancel()


class Keda:
    """A connection to an external scaler."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    @classmethod
    @asynccontextmanager
    async def connect(cls, port: int, certificate: bytes | None = None) -> AsyncIterator[Keda]:
        """`certificate` None: clear text."""
        address = f"localhost:{port}"
        if certificate is None:
            channel = grpc.aio.insecure_channel(address)
        else:
            channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(certificate))
        async with channel:
            yield cls(channel)

    async def target(self, **metadata: str) -> dict[str, float] | grpc.StatusCode:
        """Return the targets of GetMetricSpec by metric."""
        answer = await self.ask("GetMetricSpec", trigger(**metadata), MetricSpecs)
        return answer if isinstance(answer, grpc.StatusCode) else {one.name: one.target for one in answer.specs}

    async def desired(self, **metadata: str) -> float | grpc.StatusCode:
        """Return the value of GetMetrics."""
        question = MetricsQuestion(scaled_object=trigger(**metadata), name=METRIC)
        answer = await self.ask("GetMetrics", question, MetricValues)
        if isinstance(answer, grpc.StatusCode):
            return answer
        (value,) = answer.values
        assert (value.name, value.whole_value) == (METRIC, value.value)
        return float(value.value)

    async def is_active(self, **metadata: str) -> bool | grpc.StatusCode:
        answer = await self.ask("IsActive", trigger(**metadata), Activity)
        return answer if isinstance(answer, grpc.StatusCode) else bool(answer.active)

    def watch(self, **metadata: str) -> Changes:
        call = self.channel.unary_stream(
            f"/{SERVICE}/StreamIsActive",
            request_serializer=ScaledObject.SerializeToString,
            response_deserializer=Activity.FromString,
        )
        return Changes(call(trigger(**metadata), timeout=60.0))

    async def ask(self, method: str, question: Any, answer: Any) -> Any:
        """Call a method. Returns the answer, or the status of gRPC with which it was refused; `why` has the reason."""
        send = self.channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            return await send(question, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self.why = error.details() or ""
            return error.code()
