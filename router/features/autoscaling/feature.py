"""Autoscaling: the number of wanted instances, and requests that wait for a model which no instance serves yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from prometheus_client.core import Metric
from pydantic import BaseModel

from router.control.api.shapes import OpenShape
from router.control.core import Core
from router.control.feature import Feature
from router.errors import needs_extra
from router.features.autoscaling.peers import SharedWaits
from router.features.autoscaling.scaling import Scaling
from router.proxy.listeners import Listener
from router.proxy.listening_sockets import SocketShare
from router.request.stages import FeaturePath
from router.telemetry.metrics.family import build_family

if TYPE_CHECKING:  # loaded where it is configured
    from router.features.autoscaling.wake import Wake


class ScalingShape(OpenShape):
    model: str
    role: str
    instances: int
    desired: int | None
    reason: str | None


class ScalingList(BaseModel):
    models: list[ScalingShape]


class AutoscalingFeature(Feature):
    """The number of wanted instances, and the config sections `wake` and `keda`."""

    def __init__(self, core: Core) -> None:
        config, scheduler, clock = core.config, core.scheduler, core.clock
        patterns = () if config.wake is None else config.wake.models
        known = core.discoveries.values(), core.recent_records
        self.scaling = Scaling(scheduler.fleet, scheduler.working_sets, *known, patterns, clock)
        self._tasks = core.tasks
        shared = None
        if core.peers is not None:
            shared = SharedWaits(self.scaling.waiting, core.duty, core.peers)
            self.shared = (shared,)
        self.wake: Wake | None = None
        if config.wake is not None:
            from router.features.autoscaling.wake import build_wake

            self.wake = build_wake(core, config.wake, self.scaling.waiting, shared)
            self.path = FeaturePath(named=self.wake.waits.enter)
        self.listener = build_keda(core, self.scaling)

    def start(self) -> None:
        self.scaling.start(self._tasks)

    def families(self) -> Iterator[Metric]:
        wanted = {key: one.instances for key, one in self.scaling.wanted.items()}
        meaning = "instances that the model should have in a role; no sample until enough was seen"
        yield build_family("desired_instances", meaning, ("model", "role"), wanted.items())
        if self.wake is not None:
            yield from self.wake.families()

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        @app.get("/admin/scaling", dependencies=read)
        async def scaling() -> ScalingList:
            """Return how many instances are wanted by model and role, with the reason and what each reason asks
            for, and the instance whose cache is worth least, which a scale-in should take.
            """
            return ScalingList.model_validate({"models": await self.scaling.describe()})


def build_keda(core: Core, scaling: Scaling) -> Listener | None:
    """Build the listener for KEDA; None if `keda` is not configured. Raises `ConfigError` for certificate files
    that cannot be used.
    """
    keda = core.config.keda
    if keda is None:
        return None
    with needs_extra("picker", "keda"):
        from router.features.autoscaling.keda.external_scaler import ExternalScaler
        from router.picker.credentials import server_context
        from router.picker.grpc_listener import GrpcListener

    tls = server_context(keda.tls, core.clock.wall())
    services = ExternalScaler(scaling).services()
    return GrpcListener("keda.port", keda.host, keda.port, services, SocketShare(core.sockets), core.clock, tls=tls)
