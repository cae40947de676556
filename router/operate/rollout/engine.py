"""The facts about one engine that a rollout needs, as the router sees them: an entry of `GET /admin/instances`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class EngineReading(NamedTuple):
    """An entry of `GET /admin/instances`."""

    id: str
    url: str
    state: str  # joining, ready, draining, drained or down
    joins: int  # rises when it becomes ready again
    models: tuple[str, ...]
    requests: int  # the router's requests in flight at the engine
    streams: Mapping[str, str]  # state of the event stream, by target that has one
    stream_restarts: int  # new processes seen on the streams
    trouble: str | None
    warming: bool = False  # the router sends prefixes to the engine in advance
    pod: str | None = None  # NAMESPACE/NAME in Kubernetes, where another pod of the same name has another id
    handing_off: bool = False  # it is drained as soon as others have the prefixes that only it holds

    @property
    def serves(self) -> bool:
        """Whether the engine answers requests, at least those in flight."""
        return self.state in ("ready", "draining", "drained")

    def is_other_process(self, before: EngineReading) -> bool:
        """Return whether the engine has joined again, or its event streams have restarted, since `before`."""
        return (self.joins, self.stream_restarts) != (before.joins, before.stream_restarts)

    def may_succeed(self, before: EngineReading) -> bool:
        """Return whether this engine may have taken the place of `before`, which has left: another pod of the same
        name, or an engine that serves the same model.
        """
        if self.pod is not None and self.pod == before.pod:
            return True
        return self.serves and self.models[:1] == before.models[:1]

    def find_faults(self, before: EngineReading) -> list[str]:
        """Return the faults that the router sees in the engine, compared with `before`, read before its restart."""
        faults = []
        if before.models and before.models[0] not in self.models:
            faults.append(f"it does not serve {before.models[0]} any more")
        for rank in sorted(target.rpartition("/")[2] for target in before.streams):
            target = f"{self.id}/{rank}"
            if target not in self.streams:
                faults.append(f"{target}: it publishes no KV events any more")
            elif self.streams[target] == "lost":
                faults.append(f"{target}: its event stream is lost")
        return faults


def read_engine(entry: Mapping[str, Any]) -> EngineReading:
    """Return the reading of one entry of the list."""
    targets = entry["targets"]
    streams = {target["id"]: target["stream"] for target in targets if target["stream"] is not None}
    return EngineReading(
        id=entry["id"],
        url=entry["url"],
        state=entry["state"],
        joins=entry["joins"],
        models=tuple(entry["models"]),
        requests=sum(target["load"]["requests"] for target in targets),
        streams={id: stream["state"] for id, stream in streams.items()},
        stream_restarts=sum(stream["restarts"] for stream in streams.values()),
        trouble=entry["trouble"],
        warming=entry["warming"],
        pod=next((pod for source in entry["sources"] if (pod := _read_pod(source["origin"])) is not None), None),
        handing_off=entry["handing_off"],
    )


def _read_pod(origin: str | None) -> str | None:
    """Return NAMESPACE/NAME of the pod that a discovery source names. None if it names no pod."""
    kind, _, name = (origin or "").partition(" ")
    return name if kind == "pod" and name else None
