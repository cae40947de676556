"""Instances from Kubernetes: the pods that a label selector finds in one namespace, or those of an InferencePool.

    pods             selector and ports of the configuration -> list and watch -> instances
    InferencePool    list and watch of the pool -> its selector and ports -> the same; after a change of selector
                     the old pods stay in force until the new pods have been listed

Changes that arrive together are passed on together, at most every `SETTLE_S`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.kubernetes.api import KubernetesApi
from router.backends.discovery.kubernetes.objects import InferencePool, Pod
from router.backends.discovery.kubernetes.pods import PodInstances
from router.backends.discovery.kubernetes.reflector import Reflector, WatchTiming
from router.backends.feeds.jitter import Jitter
from router.clock import Clock
from router.config.sections.base import url_host
from router.config.sections.discovery import KubernetesApiConfig, KubernetesConfig
from router.errors import ConfigError
from router.tasks import Tasks

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # token, ca.crt and namespace of the pod
SETTLE_S = 0.1
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"


class PodScope(NamedTuple):
    """The pods that are engines, by selector, and the ports at which they listen."""

    selector: str
    ports: Sequence[int]


class KubernetesDiscovery:
    """The engines of one namespace. `jitter` spreads the retries of several routers; `environment` is that of the
    process, in which a pod finds the API server. Raises ConfigError outside of a cluster unless `config` names the
    API server and the namespace.
    """

    def __init__(
        self,
        config: KubernetesConfig,
        clock: Clock,
        jitter: Jitter,
        timing: WatchTiming | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._config = config
        self._clock = clock
        self._jitter = jitter
        self._timing = timing
        self._api = KubernetesApi(config.api or find_api_server(environment))
        self._namespace = config.namespace or read_own_namespace(IN_CLUSTER)
        self._tasks = Tasks("kubernetes")
        self._changed = asyncio.Event()
        self._scope: PodScope | None = None  # None: the pool was not read yet
        self._pool: Reflector[InferencePool] | None = None
        self._pods: Reflector[Pod] | None = None  # the one for the newest selector
        self._listed: Reflector[Pod] | None = None  # the newest one that has listed its pods
        self._following: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        for reflector in (self._pool, self._pods):
            if reflector is not None and reflector.trouble is not None:
                return reflector.trouble
        if self._pool is not None and self._pool.objects is not None and not self._pool.objects:
            return f"there is no InferencePool {self._config.inference_pool} in namespace {self._namespace}"
        return None

    @property
    def confirmed_at(self) -> float | None:
        return None if self._pods is None else self._pods.confirmed_at

    async def watch(self) -> AsyncIterator[list[DiscoveredInstance]]:
        """Yield the list after every change."""
        instances = PodInstances(self._config, self._namespace)
        last: list[DiscoveredInstance] | None = None
        try:
            self._start()
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._listed is not None and self._scope is not None:
                    found = instances.update(self._listed.objects or {}, self._scope.ports)
                    if found != last:
                        last = found
                        yield list(found)
                await asyncio.sleep(SETTLE_S)
        finally:
            await self._tasks.close()

    def _start(self) -> None:
        self._scope = self._pool = self._pods = self._listed = self._following = None
        name = self._config.inference_pool
        if name is None:
            self._follow(PodScope(self._config.selector or "", tuple(self._config.ports)))
            return
        query = {"fieldSelector": f"metadata.name={name}"}
        self._pool = Reflector(
            self._api,
            POOLS.format(self._namespace),
            query,
            InferencePool,
            self._clock,
            self._jitter,
            self._on_pool_change,
            self._timing,
        )
        self._tasks.supervise("inference pool", self._pool.run)

    def _on_pool_change(self) -> None:
        """Follow the pool's selector and ports. The last ones stay in force when the pool is gone."""
        for pool in (self._pool.objects or {}).values() if self._pool is not None else ():
            labels = ",".join(f"{key}={value}" for key, value in sorted(pool.spec.selector.match_labels.items()))
            self._follow(PodScope(labels, tuple(port.number for port in pool.spec.target_ports)))

    def _follow(self, scope: PodScope) -> None:
        """Follow the pods of `scope` from now on."""
        before, self._scope = self._scope, scope
        if before is not None and before.selector == scope.selector:
            self._changed.set()
            return
        if self._following is not None:
            self._following.cancel()
        path, query = f"/api/v1/namespaces/{self._namespace}/pods", {"labelSelector": scope.selector}
        pods = Reflector(
            self._api, path, query, Pod, self._clock, self._jitter, lambda: self._on_pods(pods), self._timing
        )
        self._pods = pods
        self._following = self._tasks.supervise("pods", pods.run)

    def _on_pods(self, pods: Reflector[Pod]) -> None:
        if pods is self._pods:
            self._listed = pods
            self._changed.set()


def find_api_server(environment: Mapping[str, str]) -> KubernetesApiConfig:
    """Return the API server from the environment of every pod in a cluster. Raises ConfigError outside of one."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise ConfigError("fleet.kubernetes.api: give it: KUBERNETES_SERVICE_HOST is not set, so this is no pod")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    url = f"https://{url_host(host)}:{port}"
    return KubernetesApiConfig(url=url, token_file=str(IN_CLUSTER / "token"), ca_file=str(IN_CLUSTER / "ca.crt"))


def read_own_namespace(folder: Path) -> str:
    """Return the namespace of the router's pod. Raises ConfigError outside of a cluster."""
    try:
        return (folder / "namespace").read_text().strip()
    except OSError:
        raise ConfigError(f"fleet.kubernetes.namespace: give it: there is no {folder}/namespace") from None
