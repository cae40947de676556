"""What every scorer, filter and picker must hold to, whatever the view: the contract as executable checks.

Each check takes a plug-in and one view (and, for order, how to shuffle it), so an outside package can run them on its
own plug-ins as Warmroute runs them on all registered ones (tests/scorers/test_conformance.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from math import isclose, isfinite

from scorers.contract import Filter, Picker, Scorer, Unit, View

PARTS_TOLERANCE = 1e-9
"""How far parts may add up to more or less than a cost, relative to the sum of their magnitudes: rounding."""


def check_scorer(scorer: Scorer, view: View, order: Sequence[int]) -> None:
    """`order` is a permutation of the view's rows."""
    before, state = deepcopy(view), deepcopy(scorer)
    costs = list(scorer.score(view))
    assert len(costs) == len(view.rows)
    assert all(isfinite(cost) for cost in costs), costs
    if scorer.unit is Unit.POINTS:
        assert all(0 <= cost <= 1 for cost in costs), costs
    assert list(scorer.score(view)) == costs, "the same view must give the same costs"
    assert list(deepcopy(state).score(deepcopy(view))) == costs, "costs must hang on parameters and view alone"
    check_parts(scorer, view, costs)
    assert view == before, "a view is shared by everybody: hands off"
    assert scorer == state, "scoring must not change the scorer"
    if not scorer.order_matters:
        shuffled = list(scorer.score(view._replace(rows=tuple(view.rows[i] for i in order))))
        assert all(isclose(shuffled[k], costs[i], abs_tol=1e-9) for k, i in enumerate(order)), (costs, shuffled, order)


def check_parts(scorer: Scorer, view: View, costs: Sequence[float]) -> None:
    """Check the parts of `costs`, if the scorer names any."""
    parts = scorer.parts(view)
    if parts is None:
        return
    assert parts, "no parts is None"
    assert all(len(values) == len(costs) for values in parts.values()), parts
    for i, cost in enumerate(costs):
        shares = [values[i] for values in parts.values()]
        assert all(isfinite(share) for share in shares), parts
        magnitude = max(1.0, sum(map(abs, shares)))
        assert abs(sum(shares) - cost) <= PARTS_TOLERANCE * magnitude, (cost, {n: v[i] for n, v in parts.items()})


def check_filter(a_filter: Filter, view: View, order: Sequence[int]) -> None:
    before = deepcopy(view)
    keep = list(a_filter.keep(view))
    assert len(keep) == len(view.rows)
    assert all(isinstance(answer, bool) for answer in keep), keep
    assert list(a_filter.keep(view)) == keep, "the same view must give the same answer"
    assert view == before, "a view is shared by everybody: hands off"
    shuffled = list(a_filter.keep(view._replace(rows=tuple(view.rows[i] for i in order))))
    assert shuffled == [keep[i] for i in order], "a row's fate must not hang on its position"


def check_picker(picker: Picker, view: View, costs: Sequence[float], order: Sequence[int]) -> None:
    before = deepcopy(view)
    chosen = picker.pick(view, costs)
    assert 0 <= chosen < len(view.rows)
    assert picker.pick(view, costs) == chosen, "the same view and costs must give the same choice"
    assert view == before, "a view is shared by everybody: hands off"
    shuffled = view._replace(rows=tuple(view.rows[i] for i in order))
    again = picker.pick(shuffled, [costs[i] for i in order])
    assert shuffled.rows[again].target == view.rows[chosen].target, "the choice must not hang on positions"
