from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.consistent_hash import ConsistentHash, Key
from scorers.contract import Ask, Needs, View
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_row, a_view, views

ROWS = tuple(a_row(name) for name in "abcdefgh")


def order(view: View, scorer: ConsistentHash | None = None) -> list[str]:
    """The targets, the key's own first."""
    costs = (scorer or ConsistentHash()).score(view)
    return [row.target for _, row in sorted(zip(costs, view.rows, strict=True))]


KEYED: list[tuple[Key, dict[str, Any]]] = [
    ("prefix", {"prefix": 77}),
    ("session", {"session": "s"}),
    ("program", {"program": "p"}),
    ("adapter", {"adapter": "lora"}),
    ("tenant", {"ask": Ask(tenant="t")}),
]


@pytest.mark.parametrize(("by", "known"), KEYED)
def test_only_the_key_and_the_targets_matter(by: Key, known: dict[str, Any]) -> None:
    """Another process (seed), another request (number) and another model: the same order."""
    scorer = ConsistentHash(by=by)
    here = order(a_view(*ROWS, **known), scorer)
    assert order(a_view(*ROWS, seed=5, number=9, model="other", turn=3, **known), scorer) == here
    assert order(a_view(*ROWS), scorer) != here


def test_the_same_in_every_process_and_release() -> None:
    """Caches are filled by these numbers: after an upgrade that changed them all would be in the wrong place."""
    assert ConsistentHash().score(a_view(ROWS[0], prefix=77)) == [0.8007874289885509]
    assert ConsistentHash(by="session").score(a_view(ROWS[0], session="s")) == [0.30347147501321536]


@pytest.mark.parametrize(("by", "known"), KEYED)
def test_a_target_that_goes_moves_only_its_own_keys(by: Key, known: dict[str, Any]) -> None:
    view = a_view(*ROWS, **known)
    scorer = ConsistentHash(by=by)
    before = order(view, scorer)
    for gone in ROWS:
        after = order(view._replace(rows=tuple(row for row in ROWS if row is not gone)), scorer)
        assert after == [target for target in before if target != gone.target]


def test_keys_spread_evenly() -> None:
    # 4000 keys over 8: 500 each, standard deviation sqrt(4000 * 1/8 * 7/8) = 21; 5 of those: 105
    counts = Counter(order(a_view(*ROWS, prefix=key))[0] for key in range(4000))
    assert all(abs(counts[row.target] - 500) < 105 for row in ROWS)


def test_what_a_target_leaves_is_spread_evenly_too() -> None:
    heirs = Counter(order(a_view(*ROWS, prefix=key))[1] for key in range(4000))
    assert all(abs(heirs[row.target] - 500) < 105 for row in ROWS)


def test_another_salt_is_another_order() -> None:
    first = [order(a_view(*ROWS, prefix=key))[0] for key in range(400)]
    second = [order(a_view(*ROWS, prefix=key), ConsistentHash(salt=1))[0] for key in range(400)]
    # 1 in 8 agrees by chance: 50, standard deviation sqrt(400 * 1/8 * 7/8) = 6.6; 5 of those: 33
    assert abs(sum(a == b for a, b in zip(first, second, strict=True)) - 50) < 33


def test_the_key_is_the_one_that_is_asked_for() -> None:
    known: dict[str, Any] = {}
    for by, fact in KEYED:
        known |= fact
        alone, among = order(a_view(*ROWS, **fact), ConsistentHash(by=by)), order(a_view(*ROWS, **known))
        assert order(a_view(*ROWS, **known), ConsistentHash(by=by)) == alone
        assert among == order(a_view(*ROWS, prefix=77))


def test_equal_names_of_different_kinds_are_different_keys() -> None:
    view = a_view(*ROWS, session="x", program="x", adapter="x", ask=Ask(tenant="x"))
    orders = [tuple(order(view, ConsistentHash(by=by))) for by in ("session", "program", "adapter", "tenant")]
    assert len(set(orders)) == 4


# missing


@pytest.mark.parametrize("by", ["session", "program", "adapter", "tenant"])
def test_without_its_key_a_request_goes_by_its_prefix(by: Key) -> None:
    assert order(a_view(*ROWS, prefix=77), ConsistentHash(by=by)) == order(a_view(*ROWS, prefix=77))


def test_an_empty_session_is_one() -> None:
    view = a_view(*ROWS, session="", prefix=77)
    assert order(view, ConsistentHash(by="session")) != order(view)


@pytest.mark.parametrize("by", ["prefix", "session", "program", "adapter", "tenant"])
def test_without_any_key_requests_are_spread(by: Key) -> None:
    counts = Counter(order(a_view(*ROWS, number=n), ConsistentHash(by=by))[0] for n in range(4000))
    assert all(abs(counts[row.target] - 500) < 105 for row in ROWS)


# what it asks of the router


@pytest.mark.parametrize(
    ("by", "needs"),
    [
        ("prefix", Needs.CACHE),
        ("session", Needs.SESSION),
        ("program", Needs.SESSION),
        ("adapter", Needs.NONE),
        ("tenant", Needs.NONE),
    ],
)
def test_it_needs_what_its_key_needs(by: Key, needs: Needs) -> None:
    """A session's hash must not make the router tokenise every prompt."""
    assert ConsistentHash(by=by).needs is needs
    assert needs & ConsistentHash.needs is needs


@pytest.mark.parametrize(
    "scorer",
    [
        ConsistentHash(),
        ConsistentHash(by="session"),
        ConsistentHash(by="adapter", salt=-3),
        ConsistentHash(by="tenant"),
    ],
    ids=lambda scorer: scorer.by,
)
@examples(50)
@given(st.data(), views())
def test_contract(scorer: ConsistentHash, data: Any, view: Any) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
