"""Which target stores a response: bounded, and no tenant pushes out what others stored."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import TargetId
from router.scheduling.response_targets import ResponseTargets, StoredResponse

A, B = TargetId("a/0"), TargetId("b/0")


def put(responses: ResponseTargets, tenant: str, *ids: str) -> None:
    for id in ids:
        responses.put(StoredResponse(id, A, tenant))


def ids(responses: ResponseTargets) -> list[str]:
    return [response.id for response in responses.all()]


def test_none_may_be_remembered() -> None:
    responses = ResponseTargets(0)
    put(responses, "a", "1", "2", "1")
    put(responses, "b", "1")
    assert ids(responses) == []
    assert responses.target("1") is None


def test_one_tenant_loses_its_oldest() -> None:
    responses = ResponseTargets(3)
    put(responses, "", "1", "2", "3", "4", "5")
    assert ids(responses) == ["3", "4", "5"]
    assert (responses.target("2"), responses.target("5")) == (None, A)


def test_who_stores_without_end_pushes_nobody_else_out() -> None:
    responses = ResponseTargets(10)
    put(responses, "modest", "m1", "m2", "m3")
    put(responses, "greedy", *(f"g{number}" for number in range(1000)))
    assert ids(responses) == ["m1", "m2", "m3", *(f"g{number}" for number in range(993, 1000))]
    put(responses, "modest", "m4", "m5", "m6")
    assert Counter(response.tenant for response in responses.all()) == {"modest": 5, "greedy": 5}


def test_what_is_told_twice_counts_once_and_may_move() -> None:
    responses = ResponseTargets(2)
    put(responses, "t", "1", "1", "2", "1")
    responses.put(StoredResponse("2", B, "t"))
    assert ids(responses) == ["1", "2"]
    assert responses.target("2") == B


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=80))
def test_as_a_list_does_it(limit: int, stored: list[tuple[int, int]]) -> None:
    """The one that goes is the oldest of a tenant that holds most."""
    responses, kept = ResponseTargets(limit), list[StoredResponse]()
    for tenant, number in stored:
        new = StoredResponse(str(number), A, str(tenant))
        responses.put(new)
        kept = [*(one for one in kept if one.id != new.id), new]
        found = responses.all()
        if len(kept) > limit:
            held = Counter(one.tenant for one in kept)
            (gone,) = [one for one in kept if one not in found]
            assert held[gone.tenant] == max(held.values())
            assert gone == next(one for one in kept if one.tenant == gone.tenant)
            kept.remove(gone)
        assert found == kept
