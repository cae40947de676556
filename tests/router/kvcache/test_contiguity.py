"""Chains by hand, then random sets of blocks against the definition: none without the one before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.contiguity import LOW, ContiguousRuns
from router.kvcache.events import Key


def keys(*numbers: int) -> list[Key]:
    return [Key(number) for number in numbers]


def a_fork() -> ContiguousRuns:
    """1 2 3, and after 2 also 4 5."""
    runs = ContiguousRuns()
    assert runs.append(None, keys(1, 2, 3))
    assert runs.append(Key(2), keys(4, 5))
    return runs


def test_a_chain_goes_from_its_end() -> None:
    runs = ContiguousRuns()
    assert runs.append(None, keys(1, 2))
    assert runs.append(Key(2), keys(3))
    assert runs.remove(keys(3, 2, 1))
    assert not runs.remove(keys(1)), "it is not there any more"


def test_from_its_middle_or_its_beginning_it_leaves_a_hole() -> None:
    for gone in (1, 2):
        runs = ContiguousRuns()
        runs.append(None, keys(1, 2, 3))
        assert not runs.remove(keys(gone))


def test_what_others_hang_from_stays_until_they_are_gone() -> None:
    assert a_fork().remove(keys(3, 5, 4, 2, 1))
    assert a_fork().remove(keys(5, 4, 3, 2, 1))
    assert not a_fork().remove(keys(3, 2))
    assert not a_fork().remove(keys(3, 5, 2))


def test_two_runs_may_hang_from_one_block() -> None:
    runs = a_fork()
    assert runs.append(Key(2), keys(6))
    assert runs.remove(keys(3, 6))
    assert not runs.remove(keys(2)), "4 5 still hangs there"


def test_a_tip_that_others_hang_from_can_be_gone_on_from() -> None:
    runs = a_fork()
    assert runs.remove(keys(3))  # 2 is the tip now, known by its low bits alone
    assert runs.append(Key(2), keys(7))
    assert runs.remove(keys(7, 5, 4, 2, 1))


def test_a_tip_known_in_full_is_not_taken_for_another_that_looks_like_it() -> None:
    twin = Key(3 + LOW + 1)
    runs = ContiguousRuns()
    runs.append(None, keys(1, 2, 3))
    assert not runs.remove([twin])
    runs = ContiguousRuns()
    runs.append(None, keys(1, 2, 3))
    assert runs.append(twin, keys(8)), "a block somewhere in the middle"
    assert not runs.remove([twin]), "8 hangs from it"


def test_two_tips_that_look_alike_are_too_much() -> None:
    runs = ContiguousRuns()
    assert runs.append(None, keys(1))
    assert not runs.append(None, [Key(1 + LOW + 1)])
    runs = ContiguousRuns()
    assert runs.append(None, keys(1, 2))
    assert runs.append(None, [Key(1 + LOW + 1)])
    assert not runs.remove(keys(2)), "1 would be the tip"


def test_another_object_made_of_its_runs_knows_the_same() -> None:
    again = ContiguousRuns(a_fork())
    assert again.remove(keys(3, 5, 4, 2, 1))
    assert not ContiguousRuns(a_fork()).remove(keys(3, 2))


def test_its_bytes_grow_with_what_it_knows() -> None:
    runs = ContiguousRuns()
    empty = runs.memory_bytes(0)
    runs.append(None, keys(*range(1000)))
    assert empty + 4000 <= runs.memory_bytes(1000) < empty + 6000


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 3)), max_size=60))
def test_it_says_no_exactly_when_a_block_lacks_the_one_before_it(steps: list[tuple[bool, int, int]]) -> None:
    runs = ContiguousRuns()
    before: dict[Key, Key | None] = {}
    fresh = 0
    for grow, choice, count in steps:
        held = list(before)
        if grow or not held:
            parent = None if choice == 0 or not held else held[choice % len(held)]
            added = [Key(fresh + number + (choice << 40)) for number in range(1, count + 1)]
            fresh += count
            before.update(zip(added, [parent, *added], strict=False))
            assert runs.append(parent, added)
        else:
            gone = held[choice % len(held)]
            del before[gone]
            whole = gone not in before.values()
            assert runs.remove([gone]) == whole
            if not whole:
                return
