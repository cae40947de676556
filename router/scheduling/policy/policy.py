"""A policy: filters, then weighted scorers, then a picker, built from a policy file.

A decision is a function of the view. This module is the router's side of the plug-in contract: every result of a
plug-in is checked (length, finite, POINTS within [0, 1]), and any failure inside a plug-in becomes a `PolicyFault`
that names the plug-in. Sessions, experiments and the steps after the choice are in selector.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from math import isfinite
from typing import Final, NamedTuple

from router.config import schema
from router.config.plugins import RESERVED, build_plugins
from router.config.yaml_source import YamlPath, YamlProblem, format_path
from router.errors import ConfigError, WarmrouteError, quote_name
from router.scheduling.policy.decision import FALLBACK, Decision, Part, Term
from scorers.best import Best
from scorers.contract import Filter, Measure, Needs, Picker, Plugin, Row, Scorer, Unit, View
from scorers.least_requests import LeastRequests
from scorers.parameters import parameters
from scorers.registry import PluginError, Registry, load_registry

_HALVES: tuple[Part, ...] = ("prefill", "decode")

Orders = frozenset[tuple[Measure, ...]]
"""Sequences of measures that may decide among equals: the least first measure wins, then the least next one."""

POINTS = Unit.POINTS.value
SLACK: Final = 1e-9
"""Tolerance of a POINTS cost beyond [0, 1]: the rounding of a few floating point operations."""


class PolicyFault(WarmrouteError):
    """A plug-in broke the contract during a decision. `failure` is the exception that it raised, if any."""

    def __init__(self, policy: str, plugin: str, reason: Exception | str) -> None:
        self.failure = reason if isinstance(reason, Exception) else None
        detail = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        super().__init__(f"policy {policy}: {plugin}: {detail}")
        self.policy = policy
        self.plugin = plugin


class NamedFilter(NamedTuple):
    """A filter with its name in the policy file."""

    name: str
    filter: Filter


class WeightedScorer(NamedTuple):
    """A scorer with its name and weight in the policy file."""

    name: str
    weight: float
    scorer: Scorer


class NamedPicker(NamedTuple):
    """A picker with its name in the policy file."""

    name: str
    picker: Picker


class Policy:
    """Filters, scorers and a picker that fit together. `build_policy` builds a policy from a policy file. `prefill`
    and `decode` are the policies for the halves of a pair; if one is None, this policy places that half, too.
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
        self.spec = spec  # the file it was built from
        self.digest = compute_digest(spec)
        self.prefill_from_tokens = prefill_from_tokens
        self.continuation = spec is None or spec.continuation
        self._parts: dict[Part, Policy] = {"whole": self, "prefill": prefill or self, "decode": decode or self}
        self.filters = tuple(filters)
        self.scorers = tuple(scorers)
        self.picker = picker
        self.needs = Needs.CACHE if prefill_from_tokens else Needs.NONE  # of all parts, since a request is split later
        plugins: list[Plugin] = [*(f.filter for f in filters), *(s.scorer for s in scorers), picker.picker]
        for plugin in plugins:
            self.needs |= plugin.needs
        for part in (prefill, decode):
            self.needs |= part.needs if part is not None else Needs.NONE
        self.needs_cache = Needs.CACHE in self.needs
        self.needs_session = Needs.SESSION in self.needs
        self.orders = _orders(self.filters, self.scorers, picker.picker) if not (prefill or decode) else None
        self._learners = tuple(s.scorer for s in scorers if _can_learn(s.scorer))
        self._units = tuple(s.scorer.unit.value for s in scorers)

    def with_plugins_of(self, before: Policy) -> Policy:
        """Return this policy with the scorers of `before` that have equal parameters, to keep what they learned."""
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

    def profile(self, part: Part) -> Policy:
        """Return the policy that decides this part of a request."""
        return self._parts[part]

    def decide(self, view: View, part: Part = "whole") -> Decision:
        """Return the choice among `view.rows` (at least one row) for this part of a request. Raises PolicyFault if
        a plug-in breaks the contract.
        """
        return self._parts[part]._decide(view, part)

    def _decide(self, view: View, part: Part) -> Decision:
        left, skipped, terms = view, [], []
        name = ""  # of the plug-in that runs
        try:
            for name, a_filter in self.filters:
                kept = _apply_filter(a_filter, left)
                if not kept:
                    skipped.append(name)
                elif len(kept) < len(left.rows):
                    left = left._replace(rows=kept)
            for (name, weight, scorer), unit in zip(self.scorers, self._units, strict=True):
                terms.append(Term(name, unit, weight, _score(scorer, unit, left)))
            costs = self._total(terms)
            name, picker = self.picker
            chosen = _pick(picker, left, costs)
        except PolicyFault:
            raise
        except Exception as failure:  # a plug-in may raise anything; the fault names it
            raise PolicyFault(self.name, name, failure) from failure
        return Decision(self.name, view, left.rows, tuple(terms), costs, chosen, tuple(skipped), self._learners, part)

    def might_choose_omitted(self, view: View, shown_for: Policy | None) -> bool:
        """Return whether this policy might have chosen a candidate that `view` omits. `shown_for` is the policy
        that was active when the view was built; None if that policy is unknown.
        """
        if not view.others:
            return False
        if self.orders is None or shown_for is None or shown_for.orders is None:
            return True
        return not self.orders <= shown_for.orders

    def _total(self, terms: Sequence[Term]) -> tuple[float, ...]:
        """Return each row's weighted sum, added up in the order of the terms."""
        first = terms[0]
        if len(terms) == 1 and first.weight == 1.0:
            return first.costs  # checked to be finite
        total = [first.weight * cost for cost in first.costs]
        for _, _, weight, costs in terms[1:]:
            for i, cost in enumerate(costs):
                total[i] += weight * cost
        if not isfinite(sum(total)):
            raise PolicyFault(self.name, "weights", "the weighted costs add up to more than a number can hold")
        return tuple(total)


def compute_digest(spec: schema.PolicyConfig | None) -> str:
    """Return a short digest of a policy file, equal for equal files in every process; `by hand` without a file. A
    field that a later version adds does not change the digest unless the field is set.
    """
    if spec is None:
        return "by hand"
    return blake2b(spec.model_dump_json(exclude_defaults=True).encode(), digest_size=6).hexdigest()


def build_policy(
    name: str, spec: schema.PolicyConfig, registry: Registry | None = None, *, before: Policy | None = None
) -> Policy:
    """Return the policy that a file describes. Scorers that are unchanged from `before` keep what they have
    learned. Raises ConfigError with every problem found, one per line.
    """
    registry = registry or _load_registry_for(name)
    problems: list[YamlProblem] = []
    if name == FALLBACK:
        problems.append(YamlProblem((), RESERVED))
    whole = _build_profile(spec, registry, problems)
    prefill = None if spec.prefill is None else _build_profile(spec.prefill, registry, problems, ("prefill",))
    decode = None if spec.decode is None else _build_profile(spec.decode, registry, problems, ("decode",))
    if problems or whole is None:
        raise ConfigError(*(f"policies.{quote_name(name)}: {_describe(problem)}" for problem in problems))
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
    """Return all policies by name. The installed packages are read only once, since this takes longer than
    building. Raises ConfigError with every problem found.
    """
    registry = _load_registry_for(next(iter(specs))) if specs else None
    return {name: build_policy(name, spec, registry) for name, spec in specs.items()}


def _load_registry_for(name: str) -> Registry:
    """Return the installed plug-ins. Raises ConfigError with the name of the policy that needs them."""
    try:
        return load_registry()
    except PluginError as error:
        raise ConfigError(f"policy {name!r}: {error}") from error


class _PluginSet(NamedTuple):
    """The plug-ins of one scheduling profile."""

    filters: list[NamedFilter]
    scorers: list[WeightedScorer]
    picker: NamedPicker


def _build_profile(
    spec: schema.SchedulingProfileConfig, registry: Registry, problems: list[YamlProblem], path: YamlPath = ()
) -> _PluginSet | None:
    """Return the plug-ins of the profile at `path`, and append what is wrong with them to `problems`. None: without a
    picker.
    """
    plugins = build_plugins(spec, registry, problems, path)
    if plugins.picker is None:
        return None
    name, picker = plugins.picker
    return _PluginSet(
        [NamedFilter(filter_name, built) for filter_name, built in plugins.filters],
        [WeightedScorer(scorer_name, weight, built) for scorer_name, weight, built in plugins.scorers],
        NamedPicker(name, picker),
    )


def _describe(problem: YamlProblem) -> str:
    path = format_path(problem.path)
    return f"{path}: {problem.text}" if path else problem.text


def is_same_plugin(one: Plugin, other: Plugin) -> bool:
    """Return whether two plug-ins have the same class and equal parameters, whatever they have learned."""
    return type(one) is type(other) and all(
        getattr(one, name) == getattr(other, name) for name in parameters(type(one))
    )


def merge_orders(one: Orders | None, other: Orders | None) -> Orders | None:
    """Return the orders for two policies that read the same view; None if either policy needs every row."""
    return None if one is None or other is None else one | other


def fallback_policy() -> Policy:
    """Return the policy that decides if another fails: it chooses the target with the fewest requests of this
    router, and cannot fail itself.
    """
    return Policy(FALLBACK, [], [WeightedScorer("least_requests", 1.0, LeastRequests())], NamedPicker("best", Best()))


def _apply_filter(a_filter: Filter, view: View) -> tuple[Row, ...]:
    keep = a_filter.keep(view)
    if len(keep) != len(view.rows):
        raise ValueError(f"{len(keep)} answers for {len(view.rows)} rows")
    return tuple(compress(view.rows, keep))


def _score(scorer: Scorer, unit: str, view: View) -> tuple[float, ...]:
    costs = tuple(scorer.score(view))
    if len(costs) != len(view.rows):
        raise ValueError(f"{len(costs)} costs for {len(view.rows)} rows")
    if not isfinite(sum(costs)):  # a NaN or an infinity anywhere ends up in the sum
        raise ValueError(f"a cost is not finite: {costs}")
    if unit == POINTS and not all(-SLACK <= cost <= 1 + SLACK for cost in costs):
        raise ValueError(f"costs in points lie between 0 and 1, not {min(costs):g} to {max(costs):g}")
    return costs


def _pick(picker: Picker, view: View, costs: tuple[float, ...]) -> int:
    chosen = picker.pick(view, costs)
    if not 0 <= chosen < len(costs):
        raise ValueError(f"picked row {chosen!r} of {len(costs)}")
    return chosen


def _orders(filters: Sequence[NamedFilter], scorers: Sequence[WeightedScorer], picker: Picker) -> Orders | None:
    """Return the measures that decide among rows that hold the same part of the prompt; None if the choice depends
    on all rows. The row with the least measure of the price wins, or the row with the least price among those with
    the least measure of a filter.
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


def _can_learn(scorer: Scorer) -> bool:
    kind = type(scorer)
    return kind.picked is not Scorer.picked or kind.finished is not Scorer.finished
