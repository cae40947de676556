"""A policy: filters, then weighted scorers, then a picker, put together from a policy file.

Deciding is a function of the view. The host's side of the contract is kept here: every answer of a plug-in is checked
(length, finite, POINTS within [0, 1]) and whatever goes wrong inside one comes out as a `PolicyFault` that names it.
Knows nothing of sessions, experiments or what happens after the choice (desk.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from math import isfinite
from typing import NamedTuple, TypeVar

from router.config import schema
from router.errors import ConfigError, WarmrouteError
from router.scheduling.policy.decision import FALLBACK, Decision, Part, Term
from scorers.best import Best
from scorers.contract import Filter, Measure, Needs, Picker, Plugin, Row, Scorer, Unit, View
from scorers.least_requests import LeastRequests
from scorers.parameters import parameters
from scorers.registry import PluginError, Registry, load_registry

K = TypeVar("K", bound=Plugin)

_HALVES: tuple[Part, ...] = ("prefill", "decode")

Orders = frozenset[tuple[Measure, ...]]
"""Each the measures by which a choice among equals may be settled: the least of the first, then of the next."""

POINTS = Unit.POINTS.value
SLACK = 1e-9
"""By how much a POINTS cost may miss [0, 1]: the rounding of a few floating point operations."""


class PolicyFault(WarmrouteError):
    """A plug-in broke the contract during a decision."""

    def __init__(self, policy: str, plugin: str, reason: str) -> None:
        super().__init__(f"policy {policy}: {plugin}: {reason}")
        self.policy = policy
        self.plugin = plugin


class NamedFilter(NamedTuple):
    name: str
    filter: Filter


class WeightedScorer(NamedTuple):
    name: str
    weight: float
    scorer: Scorer


class NamedPicker(NamedTuple):
    name: str
    picker: Picker


class Policy:
    """Filters, scorers and a picker that fit together. `build_policy` makes one from a policy file.

    `prefill` and `decode` are policies of their own for the halves of a pair; None: this one places that half, too.
    """

    def __init__(
        self,
        name: str,
        filters: Sequence[NamedFilter],
        scorers: Sequence[WeightedScorer],
        picker: NamedPicker,
        *,
        prefill: Policy | None = None,
        decode: Policy | None = None,
        prefill_from_tokens: int = 0,
        spec: schema.PolicyConfig | None = None,
    ) -> None:
        self.name = name
        self.spec = spec  # what it was built from
        self.digest = compute_digest(spec)
        self.prefill_from_tokens = prefill_from_tokens
        self._parts: dict[Part, Policy] = {"whole": self, "prefill": prefill or self, "decode": decode or self}
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self.needs = Needs.CACHE if prefill_from_tokens else Needs.NONE  # of all parts: which it will be shows later
        plugins: list[Plugin] = [*(f.filter for f in filters), *(s.scorer for s in scorers), picker.picker]
        for plugin in plugins:
            self.needs |= plugin.needs
        for part in (prefill, decode):
            self.needs |= part.needs if part is not None else Needs.NONE
        self.needs_cache = Needs.CACHE in self.needs
        self.orders = _orders(self.filters, self.scorers, picker.picker) if not (prefill or decode) else None
        self._learners = tuple(s.scorer for s in scorers if _learns(s.scorer))
        self._units = tuple(s.scorer.unit.value for s in scorers)

    def with_plugins_of(self, before: Policy) -> Policy:
        """This policy with the plug-ins of `before` where name and parameters are equal: they may have learned."""
        known = {scorer.name: scorer.scorer for scorer in before.scorers}
        scorers = [
            s._replace(scorer=known[s.name]) if s.name in known and is_same_plugin(s.scorer, known[s.name]) else s
            for s in self.scorers
        ]
        parts = {part: self._parts[part] for part in _HALVES if self._parts[part] is not self}
        halves = {part: half.with_plugins_of(before._parts[part]) for part, half in parts.items()}
        return Policy(
            self.name,
            self.filters,
            scorers,
            self.picker,
            **halves,
            prefill_from_tokens=self.prefill_from_tokens,
            spec=self.spec,
        )

    def decide(self, view: View, part: Part = "whole") -> Decision:
        """The choice among `view.rows`, of which there must be at least one, for this part of a request.

        Raises PolicyFault.
        """
        return self._parts[part]._decide(view, part)

    def _decide(self, view: View, part: Part) -> Decision:
        left, skipped, terms = view, [], []
        asked = ""  # the plug-in that has the word
        try:
            for asked, a_filter in self.filters:
                kept = _kept(a_filter, left)
                if not kept:
                    skipped.append(asked)
                elif len(kept) < len(left.rows):
                    left = left._replace(rows=kept)
            for (asked, weight, scorer), unit in zip(self.scorers, self._units, strict=True):
                terms.append(Term(asked, unit, weight, _scored(scorer, unit, left)))
            costs = self._total(terms)
            asked, picker = self.picker
            chosen = _picked(picker, left, costs)
        except PolicyFault:
            raise
        except Exception as failure:  # a plug-in may raise anything: this is where it gets the plug-in's name
            raise PolicyFault(self.name, asked, f"{type(failure).__name__}: {failure}") from failure
        return Decision(self.name, view, left.rows, tuple(terms), costs, chosen, tuple(skipped), self._learners, part)

    def might_choose_omitted(self, view: View, shown_for: Policy | None) -> bool:
        """Return whether this policy might have chosen a candidate that `view` leaves out. `shown_for` is the policy
        that was in use when the view was made; None: it is not known.
        """
        if not view.others:
            return False
        if self.orders is None or shown_for is None or shown_for.orders is None:
            return True
        return not self.orders <= shown_for.orders

    def _total(self, terms: Sequence[Term]) -> tuple[float, ...]:
        """Each row's weighted sum, added up in the order of the terms."""
        first = terms[0]
        if len(terms) == 1 and first.weight == 1.0:
            return first.costs  # they are finite
        total = [first.weight * cost for cost in first.costs]
        for _, _, weight, costs in terms[1:]:
            total = [so_far + weight * cost for so_far, cost in zip(total, costs, strict=True)]
        if not isfinite(sum(total)):
            raise PolicyFault(self.name, "weights", "the weighted costs add up to more than a number can hold")
        return tuple(total)


def compute_digest(spec: schema.PolicyConfig | None) -> str:
    """A short name of what a policy says: equal for equal files, in every process. Built by hand: `by hand`."""
    return "by hand" if spec is None else blake2b(spec.model_dump_json().encode(), digest_size=6).hexdigest()


def build_policy(
    name: str, spec: schema.PolicyConfig, registry: Registry | None = None, *, before: Policy | None = None
) -> Policy:
    """The policy that a file describes. What plug-ins of `before` have learned goes on in those that are the same.

    Raises ConfigError with every problem found, one a line.
    """
    registry = registry or _installed_for(name)
    problems = [f"the name {FALLBACK!r} is taken: it decides when a policy fails"] if name == FALLBACK else []
    whole = _built(spec, "", registry, problems)
    prefill = None if spec.prefill is None else _built(spec.prefill, "prefill.", registry, problems)
    decode = None if spec.decode is None else _built(spec.decode, "decode.", registry, problems)
    if problems or whole is None:
        raise ConfigError("\n".join(f"policies.{name}: {problem}" for problem in problems))
    built = Policy(
        name,
        *whole,
        prefill=None if prefill is None else Policy(f"{name}.prefill", *prefill),
        decode=None if decode is None else Policy(f"{name}.decode", *decode),
        prefill_from_tokens=spec.prefill_from_tokens,
        spec=spec,
    )
    return built if before is None else built.with_plugins_of(before)


def build_policies(specs: Mapping[str, schema.PolicyConfig]) -> dict[str, Policy]:
    """All of them. Looks through the installed packages once, which takes longer than building. Raises ConfigError."""
    registry = _installed_for(next(iter(specs))) if specs else None
    return {name: build_policy(name, spec, registry) for name, spec in specs.items()}


def _installed_for(name: str) -> Registry:
    """Raises ConfigError, saying for which policy they were needed."""
    try:
        return load_registry()
    except PluginError as twice:
        raise ConfigError(f"policy {name!r}: {twice}") from twice


class _Parts(NamedTuple):
    """A profile's plug-ins, built."""

    filters: list[NamedFilter]
    scorers: list[WeightedScorer]
    picker: NamedPicker


def _built(spec: schema.SchedulingProfileConfig, where: str, registry: Registry, problems: list[str]) -> _Parts | None:
    """The plug-ins of one profile; what is wrong is added to `problems`. `where`: what its keys begin with."""

    def built(kind: type[K], at: str, given: schema.PluginConfig) -> K | None:
        try:
            return registry.build(kind, given.name, given.model_extra or {})
        except PluginError as refusal:
            problems.append(f"{where}{at}: {refusal}")
            return None

    filters = [(f.name, built(Filter, f"filters[{i}]", f)) for i, f in enumerate(spec.filters)]
    scorers = [(s.name, s.weight, built(Scorer, f"scorers[{i}]", s)) for i, s in enumerate(spec.scorers)]
    picker = built(Picker, "picker", spec.picker)
    weighted = [WeightedScorer(n, w, s) for n, w, s in scorers if s is not None]
    problems += [f"{where}scorers: {misfit}" if where else misfit for misfit in _misfits(weighted)]
    if picker is None:
        return None
    return _Parts(
        [NamedFilter(n, f) for n, f in filters if f is not None], weighted, NamedPicker(spec.picker.name, picker)
    )


def is_same_plugin(one: Plugin, other: Plugin) -> bool:
    """Whether two plug-ins are of one kind and have equal parameters, whatever they have learned."""
    return type(one) is type(other) and all(
        getattr(one, name) == getattr(other, name) for name in parameters(type(one))
    )


def merge_orders(one: Orders | None, other: Orders | None) -> Orders | None:
    """What rows two policies need that look at the same view."""
    return None if one is None or other is None else one | other


def fallback_policy() -> Policy:
    """What decides when a policy failed: the fewest requests of ours, whatever the engines say. Cannot fail itself."""
    return Policy(FALLBACK, [], [WeightedScorer("least_requests", 1.0, LeastRequests())], NamedPicker("best", Best()))


def _misfits(scorers: list[WeightedScorer]) -> list[str]:
    """Why these scorers cannot be added up in one policy."""
    names = [s.name for s in scorers]
    problems = [
        f"scorer {n} is named {names.count(n)} times; once is enough" for n in sorted(set(names)) if names.count(n) > 1
    ]
    if scorers and not any(s.weight > 0 for s in scorers):
        problems.append("at least one scorer needs a weight above 0")
    units = ", ".join(f"{s.name} in {s.scorer.unit.value}" for s in scorers)
    if len({s.scorer.unit for s in scorers}) > 1:
        problems.append(f"scorers of different units cannot be added up: {units}")
    elif len(scorers) > 1 and scorers[0].scorer.unit is Unit.RAW:
        problems.append(f"a scorer whose unit is raw must be the only one: {units}")
    return problems


def _kept(a_filter: Filter, view: View) -> tuple[Row, ...]:
    keep = a_filter.keep(view)
    if len(keep) != len(view.rows):
        raise ValueError(f"{len(keep)} answers for {len(view.rows)} rows")
    return tuple(compress(view.rows, keep))


def _scored(scorer: Scorer, unit: str, view: View) -> tuple[float, ...]:
    costs = tuple(scorer.score(view))
    if len(costs) != len(view.rows):
        raise ValueError(f"{len(costs)} costs for {len(view.rows)} rows")
    if not isfinite(sum(costs)):  # a NaN or an infinity anywhere ends up in the sum
        raise ValueError(f"a cost is not finite: {costs}")
    if unit == POINTS and not (min(costs) >= -SLACK and max(costs) <= 1 + SLACK):
        raise ValueError(f"costs in points lie between 0 and 1, not {min(costs)} to {max(costs)}")
    return costs


def _picked(picker: Picker, view: View, costs: tuple[float, ...]) -> int:
    chosen = picker.pick(view, costs)
    if not 0 <= chosen < len(costs):
        raise ValueError(f"picked row {chosen!r} of {len(costs)}")
    return chosen


def _orders(filters: Sequence[NamedFilter], scorers: Sequence[WeightedScorer], picker: Picker) -> Orders | None:
    """What settles a choice among rows that hold the same: the least of what all prices hang on, or that among those
    that have the least of what a filter goes by. None: only all rows together do.
    """
    prices = {s.scorer.settled_by() for s in scorers}
    firsts = {f.filter.settled_by() for f in filters}
    if not picker.takes_least or len(prices) != 1:
        return None
    (price,) = prices
    settling = [measure for measure in firsts if measure is not None]
    if price is None or len(settling) < len(firsts):
        return None
    return frozenset({(price,), *((first, price) for first in settling)})


def _learns(scorer: Scorer) -> bool:
    kind = type(scorer)
    return kind.picked is not Scorer.picked or kind.finished is not Scorer.finished
