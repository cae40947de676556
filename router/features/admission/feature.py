"""Admission control: requests wait until their sessions fit the caches, and tenants have their fair shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from prometheus_client.core import Metric
from pydantic import BaseModel

from router.control.api.shapes import OpenShape
from router.control.core import Core
from router.control.feature import Feature
from router.features.admission.status import describe_admission, list_families
from router.features.admission.waiting import Acquire, AdmissionQueues, AdmissionStage
from router.request.stages import FeaturePath
from router.telemetry.metrics.buckets import WAIT_BOUNDS_S


class ModelAdmissionShape(OpenShape):
    model: str
    capacity_tokens: int | None


class ModelAdmissionList(BaseModel):
    enabled: bool
    rule: dict[str, Any]  # name and parameters, as configured
    models: list[ModelAdmissionShape]


class AdmissionFeature(Feature):
    """Admission by the rule of `admission`, or of the policies in force."""

    def __init__(self, core: Core) -> None:
        config, scheduler, clock, metrics = core.config, core.scheduler, core.clock, core.metrics
        help_waits = "requests that waited for admission, by how that ended (passed, refused, client_gone)"
        self._waits = metrics.counter("admission_waits_total", help_waits, "model", "queue", "end")
        help_wait = "how long admitted requests waited"
        self._wait_s = metrics.histogram("admission_wait_seconds", help_wait, WAIT_BOUNDS_S, "model", "queue")
        pooled, tenants = config.pool is not None, config.clients.identifies
        queues = AdmissionQueues(config.admission, scheduler, clock, self._on_wait_end, pooled=pooled, tenants=tenants)
        self.queues = queues
        acquire: Acquire | None = None  # this process decides
        if core.peers is not None:
            from router.features.admission.peers import SharedAdmission

            shared = SharedAdmission(queues, core.duty, core.peers, core.tasks, clock)
            self.shared = (shared,)
            acquire = shared.acquire
        self._clock = clock
        self._policies = scheduler.selector
        scheduler.on_swap.append(queues.follow)
        self.path = FeaturePath(tokenized=AdmissionStage(queues, scheduler.conversations, acquire).enter)

    def start(self) -> None:
        self.queues.follow(self._policies.policy_set)

    def describe(self) -> dict[str, Any]:
        """Return the rule in force, and the live sessions, capacity and queue of each model that was requested."""
        config = self.queues.config
        models = [describe_admission(model, self._clock.now()) for model in self.queues]
        return {"enabled": config.enabled, "rule": config.rule.model_dump(mode="json"), "models": models}

    def families(self) -> Iterator[Metric]:
        return list_families(self.queues)

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        @app.get("/admin/admission", dependencies=read)
        async def admission() -> ModelAdmissionList:
            """Return the rule in force, and by model live sessions, their contexts, the capacity, the queues'
            lengths, and position and wait of the first 100 waiting requests.
            """
            return ModelAdmissionList.model_validate(self.describe())

    def _on_wait_end(self, model: str, queue: str, end: str, seconds: float) -> None:
        """Count a wait. All values are the router's own, or models that engines serve."""
        self._waits[model, queue, end] += 1
        if end == "passed":
            self._wait_s[model, queue].observe(seconds)
