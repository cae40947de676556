"""Interprets pods: the instances of each, their addresses, and whether they receive requests.

A pod is usable when it is Ready, is not being deleted, and has an address, as for llm-d and the Gateway API
inference extension. A pod becomes instances when it is usable for the first time. If it later stops being usable,
it receives no new requests, and stays known until it is gone, so that open answers end well and a pod that was not
ready for a moment returns with its index. A pod whose containers have ended is gone, even while its object still
exists.

An instance is named by the pod and the first digits of its uid, so that nothing that is stored by name (a snapshot
of the index, sessions, stored responses) passes to another pod of that name. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.backends.discovery.discovery import DiscoveredInstance, configure_engine
from router.backends.discovery.kubernetes.objects import Pod
from router.config import schema
from router.config.sections.base import url_host
from router.config.sections.discovery import KubernetesConfig

ROLE_LABEL = "llm-d.ai/role"
ROLES = {
    "prefill": "prefill",
    "encode-prefill": "prefill",
    "decode": "decode",
    "prefill-decode": "both",
    "encode-prefill-decode": "both",
    "both": "both",
}
"""Values of llm-d's label. A pod with `encode` alone computes no tokens, so it is no instance."""
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
REVISION = "warmroute.dev/revision"
EVENTS_PORT = "warmroute.dev/kv-events-port"
REPLAY_PORT = "warmroute.dev/kv-replay-port"
ENDED = ("Succeeded", "Failed")
UID_CHARS = 8


class PodReading(NamedTuple):
    """A pod as it was last seen, and its instances."""

    pod: Pod
    ports: Sequence[int]
    instances: list[DiscoveredInstance]


def is_usable(pod: Pod) -> bool:
    """Return whether a pod may receive requests."""
    conditions = pod.status.conditions or ()
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in conditions)
    return ready and pod.metadata.deletion_timestamp is None and bool(pod.status.pod_ip)


class PodInstances:
    """The instances of a set of pods. Only pods that changed are read again."""

    def __init__(self, config: KubernetesConfig, namespace: str) -> None:
        self._config = config
        self._namespace = namespace
        self._readings: dict[str, PodReading] = {}  # by uid; of pods that have been usable

    def update(self, pods: Mapping[str, Pod], ports: Sequence[int]) -> list[DiscoveredInstance]:
        """Return the instances of all `pods`, given by uid, each of which listens at `ports`. If two pods have one
        address, the usable one gets it: the other is being deleted.
        """
        readings: dict[str, PodReading] = {}
        for uid, pod in pods.items():
            known = self._readings.get(uid)
            if known is None or known.pod is not pod or known.ports != ports:
                known = self._read(known, pod, ports)
            if known is not None:
                readings[uid] = known
        self._readings = readings
        by_url: dict[str, DiscoveredInstance] = {}
        for reading in self._readings.values():
            for instance in reading.instances:
                other = by_url.get(instance.config.url)
                if other is None or (instance.accepting and not other.accepting):
                    by_url[instance.config.url] = instance
        return list(by_url.values())

    def _read(self, known: PodReading | None, pod: Pod, ports: Sequence[int]) -> PodReading | None:
        """Read a pod; None if it is no instance, or not yet. Unchanged parts are kept from the previous reading."""
        if pod.status.phase in ENDED:
            return None
        if known is None:
            return PodReading(pod, ports, self._describe(pod, ports)) if is_usable(pod) else None
        usable = is_usable(pod)
        instances = [
            found if found.accepting is usable else found._replace(accepting=usable) for found in known.instances
        ]
        if usable and (described := self._describe(pod, ports)) != instances:
            instances = described
        return PodReading(pod, ports, instances)

    def _describe(self, pod: Pod, ports: Sequence[int]) -> list[DiscoveredInstance]:
        """Return one instance per active port of a usable pod."""
        role = self._role(pod)
        if role is None:
            return []
        annotations = pod.metadata.annotations or {}
        listed = next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None)
        active = None if listed is None else {port.strip() for port in listed.split(",")}
        uid, name = pod.metadata.uid, pod.metadata.name
        return [
            DiscoveredInstance(
                self._configure(pod, role, port, rank, many=len(ports) > 1), f"pod {self._namespace}/{name}", uid
            )
            for rank, port in enumerate(ports)
            if active is None or str(port) in active
        ]

    def _configure(self, pod: Pod, role: str, port: int, rank: int, *, many: bool) -> schema.InstanceConfig:
        meta, host = pod.metadata, url_host(pod.status.pod_ip or "")
        labels, annotations = meta.labels or {}, meta.annotations or {}
        name = f"{meta.name}-rank-{rank}" if many else meta.name
        return configure_engine(
            self._config,
            host,
            port,
            name=f"{name}.{meta.uid[:UID_CHARS]}",
            kv_events=_find_events(annotations, host, rank),
            role=role,
            transfer=self._transfer(role, host),
            revision=annotations.get(REVISION) or labels.get(self._config.revision_label),
        )

    def _transfer(self, role: str, host: str) -> dict[str, str] | None:
        protocol = self._config.transfer
        if role == "both":
            return None
        if role == "prefill" and protocol == "mooncake":
            return {"protocol": protocol, "bootstrap_url": f"http://{host}:{self._config.bootstrap_port}"}
        return {"protocol": protocol}

    def _role(self, pod: Pod) -> str | None:
        """Return the role by the configured labels, else by llm-d's label; None for a pod that only encodes."""
        labels = pod.metadata.labels or {}
        for role, wanted in (("prefill", self._config.prefill_labels), ("decode", self._config.decode_labels)):
            if wanted and wanted.items() <= labels.items():
                return role
        value = labels.get(ROLE_LABEL)
        return "both" if value is None else None if value == "encode" else ROLES.get(value, "both")


def _find_events(annotations: Mapping[str, str], host: str, rank: int) -> str | list[dict[str, object]]:
    """Return where the instance publishes its events, from annotations with the ports of rank 0; "auto" without
    annotations, which means that the engine is queried.
    """
    port = _port(annotations.get(EVENTS_PORT))
    if port is None:
        return "auto"
    replay = _port(annotations.get(REPLAY_PORT))
    endpoint = None if replay is None else f"tcp://{host}:{replay + rank}"
    return [{"endpoint": f"tcp://{host}:{port + rank}", "replay_endpoint": endpoint}]


def _port(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536 else None
