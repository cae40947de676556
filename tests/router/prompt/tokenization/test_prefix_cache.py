"""What is remembered by the bytes in front of it, how long, and how much memory that takes."""

from __future__ import annotations

import tracemalloc

import pytest

from router.kvcache.block_keys import Keyring
from router.kvcache.events import Key
from router.kvcache.memory_budget import MemoryBudget
from router.prompt.tokenization.prefix_cache import CachedSegment, Prefix, PrefixCache, make_segment

ROOM = MemoryBudget(1 << 30)


def memo(limit_bytes: int = 1 << 30) -> PrefixCache:
    return PrefixCache(MemoryBudget(limit_bytes), b"secret")


def test_a_name_stands_for_all_bytes_up_to_there() -> None:
    names = memo().name_segments(b"root\0", [b"one", b"two", b"three"])
    assert [len(name) for name in names] == [16, 16, 16]
    assert memo().name_segments(b"root\0", [b"one", b"two", b"thre"])[:2] == names[:2]
    assert memo().name_segments(b"root\0", [b"onetwo", b"three"]) == names[1:], "where it was cut does not matter"
    assert not set(memo().name_segments(b"toor\0", [b"one", b"two", b"three"])) & set(names)
    assert not set(memo().name_segments(b"root\0", [b"One", b"two", b"three"])) & set(names)
    assert not set(PrefixCache(ROOM, b"terces").name_segments(b"root\0", [b"one", b"two", b"three"])) & set(names)


def test_found_is_the_leading_run() -> None:
    store = memo()
    names = store.name_segments(b"", [b"a", b"b", b"c"])
    pieces = [CachedSegment(), CachedSegment(), CachedSegment()]
    store.store(names[:2], pieces[:2])
    assert store.find(names) == pieces[:2]
    assert store.find(names[1:]) == pieces[1:2]
    assert store.find(store.name_segments(b"", [b"x", b"b"])) == []
    assert len(store) == 2


def test_the_oldest_goes_first_and_of_a_prompt_its_end() -> None:
    """Room for four pieces. Two prompts share their first piece."""
    one, two = memo().name_segments(b"", [b"a", b"b", b"c"]), memo().name_segments(b"", [b"a", b"x", b"y"])
    size = CachedSegment().memory_bytes
    store = memo(4 * size)
    store.store(one, [CachedSegment(), CachedSegment(), CachedSegment()])
    store.store(two, [*store.find(two), CachedSegment(), CachedSegment()])
    assert [len(store.find(one)), len(store.find(two))] == [2, 3], "the first one's end is gone"
    store.store(one, [*store.find(one), CachedSegment()])
    assert [len(store.find(one)), len(store.find(two))] == [3, 2]


def test_what_is_used_again_stays() -> None:
    """Room for two pieces: of two prompts the first is used again, so the third takes the second one's place."""
    store = memo(2 * CachedSegment().memory_bytes)
    one, two, three = (store.name_segments(text, [b"a"]) for text in (b"1", b"2", b"3"))
    for names in (one, two):
        store.store(names, [CachedSegment()])
    store.store(one, store.find(one))
    store.store(three, [CachedSegment()])
    assert [len(store.find(names)) for names in (one, two, three)] == [1, 0, 1]


def test_a_prompt_too_large_for_the_memory_is_kept_from_its_beginning() -> None:
    budget = MemoryBudget(3 * CachedSegment().memory_bytes)
    store = PrefixCache(budget, b"secret")
    names = store.name_segments(b"", [b"%d" % i for i in range(10)])
    store.store(names, [CachedSegment() for _ in names])
    assert (len(store.find(names)), len(store), budget.evicted) == (3, 3, 7)
    nothing = memo(0)
    nothing.store(names, [CachedSegment() for _ in names])
    assert len(nothing) == 0


def test_others_make_it_forget_too() -> None:
    budget = MemoryBudget(4 * CachedSegment().memory_bytes)
    store = PrefixCache(budget, b"secret")
    names = store.name_segments(b"", [b"a", b"b", b"c"])
    store.store(names, [CachedSegment(), CachedSegment(), CachedSegment()])
    budget.take(3 * CachedSegment().memory_bytes)
    assert len(store.find(names)) == 1


@pytest.mark.parametrize(("tokens", "spell", "sizes"), [(20, False, [16]), (250, True, [16]), (800, True, [16, 128])])
def test_the_estimate_is_what_the_interpreter_takes(tokens: int, spell: bool, sizes: list[int]) -> None:
    budget = MemoryBudget(1 << 30)
    store = PrefixCache(budget, b"secret")
    ids = [[(7 * i + j) % 100_000 for j in range(tokens)] for i in range(40)]
    tracemalloc.start()
    for prompt in range(50):
        line, pieces = Prefix(Keyring(1), Key(prompt), sizes), []
        for one in ids:
            pieces.append(make_segment(one, spell=spell))
            line.add(pieces[-1])
        store.store(store.name_segments(b"%d" % prompt, [b"x"] * len(ids)), pieces)
        del line, pieces
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken == pytest.approx(budget.held_bytes, rel=0.15)
