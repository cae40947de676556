"""Book of LoRA adapters: their instances and users, and the plan of a loading with the adapter that makes room.

An adapter is loaded on the instance with room that has the fewest adapters. If no instance has room, it replaces
the coldest adapter: the one whose last request is the longest ago, among adapters that the router may load again,
that no request in progress wants, and that the instance's engines do not report as running or waiting (used by
other clients). The module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

from router.fleet.fleet import Fleet
from router.fleet.instance import Instance, InstanceState


class LoadPlan(NamedTuple):
    """Load the adapter on `instance`, after it has unloaded `unload`; None if there is room."""

    instance: str
    unload: str | None = None


class AdapterUse(NamedTuple):
    """Use of an adapter by the requests of one process."""

    wanted: int  # requests in progress
    age_s: float  # since the last one came


class AdapterBook:
    """The book of one process. `managed` adapters can be loaded again; `max_loaded` is per instance."""

    def __init__(self, fleet: Fleet, managed: Collection[str], max_loaded: int) -> None:
        self._fleet = fleet
        self._managed = frozenset(managed)
        self._max_loaded = max_loaded
        self._wanted: Counter[str] = Counter()  # requests in progress
        self._used_s: dict[str, float] = {}  # when the last request came
        self.loading: Counter[str] = Counter()  # adapters on their way, by instance

    def begin(self, adapter: str, now: float) -> None:
        """Count a request for the adapter, which is not unloaded until all its requests have ended."""
        self._wanted[adapter] += 1
        self._used_s[adapter] = now

    def end(self, adapter: str) -> None:
        """Count the end of a request for the adapter."""
        self._wanted[adapter] -= 1

    def list_uses(self, adapters: Iterable[str], now: float) -> dict[str, AdapterUse]:
        """Return the use of `adapters`, without those that were never requested."""
        used_s = self._used_s
        return {name: AdapterUse(self._wanted[name], now - used_s[name]) for name in adapters if name in used_s}

    def learn(self, uses: Mapping[str, AdapterUse], now: float) -> None:
        """Adopt the times of the last requests at another process."""
        for name, use in uses.items():
            if name in self._managed:
                self._used_s[name] = max(now - use.age_s, self._used_s.get(name, -inf))

    def find_instance(self, model: str) -> str | None:
        """Return a ready instance that has the adapter, or serves the model; None if there is none."""
        instances = (target.instance for target in self._fleet.targets_serving(model))
        return next((each.id for each in instances if each.state is InstanceState.READY), None)

    def plan(self, base: str, wanted: Collection[str] = ()) -> LoadPlan | None:
        """Return where to load an adapter of the model `base`; None if no ready instance serves the model, or none
        has room or an adapter to unload. `wanted` are adapters that stay, because requests of other processes want
        them.
        """
        instances = [each for each in self._fleet if each.state is InstanceState.READY and base in each.served]
        loaded = {each.id: len(list_adapters(each)) + self.loading[each.id] for each in instances}
        room = [each for each in instances if loaded[each.id] < self._max_loaded]
        if room:
            return LoadPlan(min(room, key=lambda each: (loaded[each.id], each.requests)).id)
        cold = [
            (self._used_s.get(name, -inf), each.requests, each.id, name)
            for each in instances
            for name in list_adapters(each)
            if name in self._managed and not self._wanted[name] and name not in wanted
            if name not in reported_adapters(each)
        ]
        if not cold:
            return None
        _, _, instance, name = min(cold)
        return LoadPlan(instance, name)


def list_adapters(instance: Instance) -> list[str]:
    """Return the adapters that are loaded on an instance."""
    return [name for name, served in instance.served.items() if served.adapter is not None]


def reported_adapters(instance: Instance) -> set[str]:
    """Return the adapters of the requests that the instance's engines reported at the last poll."""
    found = set[str]()
    for target in instance.targets.values():
        gauges = target.load_book.gauges
        found.update(gauges.adapters or (), gauges.waiting_adapters or ())
    return found
