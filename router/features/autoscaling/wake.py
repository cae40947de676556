"""Calls to start instances: one call at a time for a model, and the next one after a pause.

If a host has several workers, only the worker on duty calls. Each worker requests an instance as long as requests
wait at it (`features/autoscaling/model_waits.py`), the others by a message; this module decides which of these
become calls.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from router.backends.discovery.kubernetes.api import KubernetesApi
from router.backends.discovery.kubernetes.discovery import IN_CLUSTER, find_api_server, read_own_namespace
from router.clock import Clock
from router.config import schema
from router.config.sections.autoscaling import WakeConfig, WakeModelConfig
from router.control.core import Core
from router.errors import quote_name
from router.features.autoscaling.model_waits import ModelWaits, WakePatterns
from router.features.autoscaling.peers import SharedWaits
from router.features.autoscaling.starters import DeploymentStarter, InstanceStarter, WebhookStarter
from router.features.autoscaling.waiting_models import WaitingModels
from router.tasks import Tasks
from router.telemetry.metrics.buckets import WAIT_BOUNDS_S
from router.telemetry.metrics.family import build_family, by_label

log = logging.getLogger("warmroute.wake")

CALLS_AT_ONCE = 8  # over all models, because patterns also match names that clients make up


class WakeCaller:
    """Starts instances by `starters`, given by pattern; None: KEDA starts them, and nothing is called. After each
    call, `on_end` is called with the model and whether the call failed.
    """

    def __init__(
        self, starters: Mapping[str, InstanceStarter | None], pause_s: float, tasks: Tasks, clock: Clock
    ) -> None:
        self.on_end: list[Callable[[str, bool], None]] = []
        self._starters = starters
        self._patterns = WakePatterns(starters)
        self._pause_s = pause_s
        self._tasks = tasks
        self._clock = clock
        self._calling: set[str] = set()
        self._ended_s: dict[str, float] = {}  # end of the last call by model, within the last `pause_s`
        self.calls: Counter[tuple[str, str]] = Counter()  # by pattern and how they ended: accepted, failed

    def ask(self, model: str, waiting: int) -> None:
        """Call to start an instance with the model, unless a call is in flight or ended less than the pause ago."""
        now = self._clock.now()
        self._ended_s = {name: at_s for name, at_s in self._ended_s.items() if now - at_s < self._pause_s}
        pattern = self._patterns.find(model)
        starter = None if pattern is None else self._starters[pattern]
        if pattern is None or starter is None or model in self._calling or model in self._ended_s:
            return
        if len(self._calling) < CALLS_AT_ONCE:
            self._calling.add(model)
            self._tasks.spawn("wake", self._call(starter, pattern, model, waiting))

    async def _call(self, starter: InstanceStarter, pattern: str, model: str, waiting: int) -> None:
        log.info("no instance serves %s, %d requests wait here: requesting an instance", quote_name(model), waiting)
        try:
            trouble = await starter.start(model, waiting)
        finally:
            self._calling.discard(model)
            self._ended_s[model] = self._clock.now()
        if trouble is not None:
            log.error("an instance with %s cannot be started: %s", quote_name(model), trouble)
        self.calls[pattern, "accepted" if trouble is None else "failed"] += 1
        for on_end in self.on_end:
            on_end(model, trouble is not None)


class Wake:
    """The parts of `wake` in one process."""

    def __init__(self, waits: ModelWaits, caller: WakeCaller) -> None:
        self.waits = waits
        self.caller = caller

    def families(self) -> Iterator[Metric]:
        """Return the present metrics of waiting requests and calls."""
        waiting = "requests that wait for an instance with their model, by pattern of `wake.models`"
        yield build_family("wake_waiting_requests", waiting, ("model",), by_label(self.waits.waiting()))
        calls = "calls that start an instance, by that pattern and end: accepted, failed"
        yield build_family("wake_calls_total", calls, ("model", "end"), self.caller.calls.items())


def build_wake(core: Core, config: WakeConfig, waiting_models: WaitingModels, shared: SharedWaits | None) -> Wake:
    """Build the parts that let requests wait in this process, have instances started, and report to
    `waiting_models` the models that requests wait for. `shared` is None if this is the only process. Raises
    ConfigError for a Deployment outside of a cluster.
    """
    starters = {name: build_starter(model, core.config.fleet) for name, model in config.models.items()}
    caller = WakeCaller(starters, config.pause_s, core.tasks, core.clock)
    ends = "waits for an instance with the model, by pattern of `wake.models` and end (passed, timed_out, no_room, "
    ended = core.metrics.counter("wake_waits_total", f"{ends}client_gone)", "model", "end")
    waited = "how long requests waited for it"
    waited_s = core.metrics.histogram("wake_wait_seconds", waited, WAIT_BOUNDS_S, "model")

    def ask(model: str, waiting: int) -> None:
        waiting_models.report(model, waiting)
        if core.duty.held:
            caller.ask(model, waiting)

    def on_wait_end(pattern: str, end: str, seconds: float) -> None:
        ended[pattern, end] += 1
        if end == "passed":
            waited_s[(pattern,)].observe(seconds)

    waits = ModelWaits(config, core.scheduler.fleet, core.config.adapter_bases, core.clock, ask, on_wait_end)
    caller.on_end.append(waits.on_call_end)
    if shared is not None:
        shared.call, shared.on_call_end = caller.ask, waits.on_call_end
        caller.on_end.append(shared.publish_end)
    return Wake(waits, caller)


def build_starter(config: WakeModelConfig, fleet: schema.FleetConfig) -> InstanceStarter | None:
    """Build the starter of instances; None if KEDA starts them. Raises ConfigError outside of a cluster, where
    Kubernetes cannot be found.
    """
    if config.webhook is not None:
        token_env = config.webhook.token_env
        return WebhookStarter(config.webhook, None if token_env is None else os.environ[token_env])
    if config.deployment is None:
        return None
    found, deployment = fleet.kubernetes, config.deployment
    api = KubernetesApi((None if found is None else found.api) or find_api_server(os.environ))
    namespace = deployment.namespace or (None if found is None else found.namespace) or read_own_namespace(IN_CLUSTER)
    return DeploymentStarter(api, namespace, deployment.name, deployment.replicas)
