"""Registry of plug-ins by name: the built-in ones, listed here, and those of installed packages, found through
entry points.

A plug-in's parameters are its dataclass fields, checked strictly: a policy file that misspells one is rejected with
a message that lists the known ones. The registry only lists plug-ins at first and imports one when a policy names
it, so a broken outside package affects only the policies that use it. This module does not depend on policies,
files or the router.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import TypeVar

from scorers.admission.contract import AdmissionRule
from scorers.contract import Filter, Picker, Plugin, Scorer, Unit
from scorers.parameters import ParameterError, check_parameters, parameters, suggest

P = TypeVar("P", bound=Plugin)

BUILTINS: Mapping[type[Plugin], Mapping[str, str]] = {
    Scorer: {
        "aibrix_prefix": "scorers.rivals.aibrix_prefix:AibrixPrefix",
        "consistent_hash": "scorers.consistent_hash:ConsistentHash",
        "dualmap": "scorers.rivals.dualmap:Dualmap",
        "dynamo_cost": "scorers.rivals.dynamo_cost:DynamoCost",
        "expected_ttft": "scorers.expected_ttft:ExpectedTtft",
        "jsew": "scorers.rivals.jsew:Jsew",
        "kv_usage": "scorers.kv_usage:KvUsage",
        "lbgr": "scorers.rivals.lbgr:Lbgr",
        "least_requests": "scorers.least_requests:LeastRequests",
        "least_work_left": "scorers.least_work_left:LeastWorkLeft",
        "lmetric": "scorers.rivals.lmetric:Lmetric",
        "lmetric_guarded": "scorers.rivals.lmetric_guarded:LmetricGuarded",
        "loadaware": "scorers.rivals.loadaware:Loadaware",
        "lora_affinity": "scorers.lora_affinity:LoraAffinity",
        "mooncake_alg1": "scorers.rivals.mooncake_alg1:MooncakeAlg1",
        "prefix_overlap": "scorers.prefix_overlap:PrefixOverlap",
        "queue_depth": "scorers.queue_depth:QueueDepth",
        "ramjet": "scorers.rivals.ramjet:Ramjet",
        "random": "scorers.random:Random",
        "ray_prefix_affinity": "scorers.rivals.ray_prefix_affinity:RayPrefixAffinity",
        "round_robin": "scorers.round_robin:RoundRobin",
        "session_affinity": "scorers.session_affinity:SessionAffinity",
        "sglang_threshold": "scorers.rivals.sglang_threshold:SglangThreshold",
        "slo_headroom": "scorers.slo_headroom:SloHeadroom",
        "smetric": "scorers.rivals.smetric:Smetric",
        "soft_affinity": "scorers.soft_affinity:SoftAffinity",
        "subagent_groups": "scorers.subagent_groups:SubagentGroups",
        "token_load": "scorers.token_load:TokenLoad",
        "vllm_router_kv_aware": "scorers.rivals.vllm_router_kv_aware:VllmRouterKvAware",
        "warm": "scorers.warm:Warm",
    },
    Filter: {
        "adapter_room": "scorers.adapter_room:AdapterRoom",
        "affinity_gate": "scorers.affinity_gate:AffinityGate",
        "bounded_load": "scorers.bounded_load:BoundedLoad",
        "dual_hash": "scorers.rivals.dual_hash:DualHash",
        "max_waiting": "scorers.max_waiting:MaxWaiting",
        "near_longest": "scorers.near_longest:NearLongest",
    },
    Picker: {
        "best": "scorers.best:Best",
        "power_of_k": "scorers.power_of_k:PowerOfK",
        "softmax": "scorers.softmax:Softmax",
    },
    AdmissionRule: {
        "concurrency": "scorers.admission.concurrency:Concurrency",
        "edf": "scorers.admission.edf:Edf",
        "fit": "scorers.admission.fit:Fit",
        "none": "scorers.admission.none:NoAdmission",
        "progress_ttl": "scorers.admission.progress_ttl:ProgressTtl",
        "saturation": "scorers.admission.saturation:Saturation",
        "thunderagent": "scorers.admission.thunderagent:Thunderagent",
    },
}
"""The built-in plug-ins by kind and name; each is imported when a policy names it."""

GROUPS: Mapping[type[Plugin], str] = {
    Scorer: "warmroute.scorers",
    Filter: "warmroute.filters",
    Picker: "warmroute.pickers",
    AdmissionRule: "warmroute.admission_rules",
}
"""The entry point group in which an outside package offers plug-ins of a kind."""


class PluginError(ValueError):
    """A plug-in is unknown, offered twice or not importable, or rejects its parameters. `str()` says which.
    `parameter` is the one that is rejected; None: another problem.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


@dataclass(frozen=True)
class Registry:
    """All plug-ins that a policy can name. Create a registry with `load_registry()`; tests may pass `outside`."""

    outside: Mapping[type[Plugin], Mapping[str, EntryPoint]]

    def names(self, kind: type[Plugin]) -> list[str]:
        """Return the names of all plug-ins of a kind, sorted."""
        return sorted([*BUILTINS[kind], *self.outside[kind]])

    def build(self, kind: type[P], name: str, params: Mapping[str, object]) -> P:
        """Return the plug-in `name` with these parameters. Raises PluginError if the name is unknown or the plug-in
        rejects them.
        """
        plugin = self.find(kind, name)
        try:
            return plugin(**check_parameters(plugin, params))
        except ValueError as refusal:
            parameter = refusal.parameter if isinstance(refusal, ParameterError) else None
            raise PluginError(f"{_label(kind)} {name}: {refusal}", parameter) from refusal

    def find(self, kind: type[P], name: str) -> type[P]:
        """Return the class behind a name. Raises PluginError if the name is unknown or the class is no valid
        plug-in.
        """
        if name in BUILTINS[kind]:
            return _check_class(kind, name, resolve_name(BUILTINS[kind][name]))
        if name in self.outside[kind]:
            return _check_class(kind, name, _import(kind, self.outside[kind][name]))
        known = self.names(kind)
        hint = self._find_kind(name) or suggest(name, known) or f"; known names: {', '.join(known)}"
        raise PluginError(f"unknown {_label(kind)} {name!r}{hint}")

    def _find_kind(self, name: str) -> str:
        """Return ` (it is one of the filters)` if `name` is a plug-in of another kind, else an empty string."""
        return next((f" (it is one of the {_label(kind)}s)" for kind in GROUPS if name in self.names(kind)), "")


def load_registry() -> Registry:
    """Return a registry of the built-in plug-ins and those that installed packages offer. Raises PluginError if two
    plug-ins of one kind have the same name.
    """
    offered = installed_plugins()
    return Registry({kind: _list_offered(kind, offered[group]) for kind, group in GROUPS.items()})


@cache
def installed_plugins() -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of each of our groups. Cached for the process, since finding them reads files of
    every package.
    """
    offered = entry_points()
    return {group: tuple(offered.select(group=group)) for group in GROUPS.values()}


def _list_offered(kind: type[Plugin], offered: Iterable[EntryPoint]) -> dict[str, EntryPoint]:
    listed: dict[str, EntryPoint] = {}
    for point in offered:
        if point.name in BUILTINS[kind] or point.name in listed:
            other = "Warmroute itself" if point.name in BUILTINS[kind] else _origin(listed[point.name])
            raise PluginError(f"{_label(kind)} {point.name!r} is offered twice: by {other} and by {_origin(point)}")
        listed[point.name] = point
    return listed


def _import(kind: type[Plugin], point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as failure:  # foreign code runs at import and may raise anything; the message names the plug-in
        raise PluginError(
            f"{_label(kind)} {point.name!r} of {_origin(point)} cannot be imported: {failure}"
        ) from failure


def _check_class(kind: type[P], name: str, found: object) -> type[P]:
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise PluginError(f"{_label(kind)} {name!r}: {found!r} is not a subclass of {kind.__module__}.{kind.__name__}")
    if not is_dataclass(found):
        raise PluginError(f"{_label(kind)} {name!r}: {found.__name__} must be a dataclass")
    if issubclass(found, Scorer) and not isinstance(getattr(found, "unit", None), Unit):
        raise PluginError(f"scorer {name!r}: {found.__name__} must declare its unit (scorers.contract.Unit)")
    if taken := {"name", "weight"} & parameters(found).keys():
        raise PluginError(
            f"{_label(kind)} {name!r}: a parameter may not be called {taken.pop()!r}, policy files use it"
        )
    return found


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} ({point.value})" if point.dist else point.value


def _label(kind: type[Plugin]) -> str:
    return "admission rule" if kind is AdmissionRule else kind.__name__.lower()
