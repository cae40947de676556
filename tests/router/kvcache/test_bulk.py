"""The tables in C and their twins in Python do the same, step by step; and what C has to take care of itself."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.kvcache import bulk
from tests.paths import ROOT
from tests.suites.properties import examples


def load_twin() -> Any:
    spec = spec_from_file_location("bulk_twin", ROOT / "router" / "kvcache" / "bulk.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TWIN = load_twin()
IN_C = not str(bulk.__file__).endswith(".py")
SHORT = bulk.SHORT
FEW = st.integers(0, 40)  # numbers that meet again
MANY = st.integers(0, 2**64 - 1)
keys = FEW | st.integers(0, SHORT)
hashes = FEW | MANY | st.integers(-(2**70), 2**70)
wrong = st.sampled_from([-1, SHORT + 1, 2**64, -(2**80)])


def result(call: Callable[..., Any], *args: Any) -> Any:
    """Return what a call returned, or the class of what it raised."""
    try:
        return call(*args)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)


class KeyTables(RuleBasedStateMachine):
    """One table of each kind and the same calls of both."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: tuple[Any, Any] = (bulk.KeyTable(), TWIN.KeyTable())

    def both(self, method: str, *args: Any) -> Any:
        one, other = (result(getattr(table, method), *args) for table in self.tables)
        assert one == other, (method, args)
        return one

    @initialize(first=MANY, count=st.sampled_from([0, 10, 3_000, 20_000]))
    def grow(self, first: int, count: int) -> None:
        names = [first + number for number in range(count)]
        self.both("add_new", names, [name & SHORT for name in names])

    @rule(names=st.lists(hashes, max_size=100), of=keys)
    def add_new(self, names: list[int], of: int) -> None:
        assert self.both("add_new", names, [(of + number) & SHORT for number in range(len(names))]) in (True, False)

    @rule(names=st.lists(hashes, max_size=3), of=st.lists(keys | wrong, max_size=3))
    def add_wrong(self, names: list[int], of: list[Any]) -> None:
        self.both("add_new", names, of)

    @rule(name=hashes, key=keys | wrong | st.none())
    def set(self, name: int, key: Any) -> None:
        self.both("set", name, key)

    @rule(name=hashes)
    def ask(self, name: int) -> None:
        self.both("get", name)
        self.both("__contains__", name)

    @rule(names=st.lists(hashes, max_size=100))
    def ask_many(self, names: list[int]) -> None:
        self.both("is_new", names)

    @rule(names=st.lists(hashes, max_size=100))
    def take(self, names: list[int]) -> None:
        self.both("take", names)

    @rule(place=st.integers(0, 2**20), count=st.integers(0, 3_000))
    def take_held(self, place: int, count: int) -> None:
        known, _, orphans = (array("Q", raw) for raw in self.tables[1].save())
        names = [*known, *orphans]
        place %= len(names) + 1
        self.both("take", names[place : place + count])

    @rule(most=st.sampled_from([-1, 0, 1, 7, 100, 5_000]))
    def take_some(self, most: int) -> None:
        one, other = self.tables
        before = dict(zip(*(array("Q", raw) for raw in one.save()[:2]), strict=True))
        orphans = {*array("Q", one.save()[2])}
        length = len(one)
        taken = one.take_some(most)
        assert length - len(one) == min(max(0, most), length)
        gone = [name for name in before if name not in one]
        assert sorted(taken) == sorted(before[name] for name in gone)
        other.take([*gone, *(name for name in orphans if name not in one)])

    @invariant()
    def they_are_equal(self) -> None:
        one, other = self.tables
        assert len(one) == len(other)
        assert bool(one) == bool(other)
        (names, of, orphans), expected = ([array("Q", raw) for raw in table.save()] for table in self.tables)
        assert dict(zip(names, of, strict=True)) == dict(zip(*expected[:2], strict=True))
        assert sorted(orphans) == sorted(expected[2])
        assert sys.getsizeof(one) > 16 * len(one)


class HolderTables(RuleBasedStateMachine):
    """Two tiers of each kind and the same calls of both. `prompt` is what targets hold parts of."""

    def __init__(self) -> None:
        super().__init__()
        self.tiers: list[tuple[Any, Any]] = [(bulk.HolderTable(), TWIN.HolderTable()) for _ in range(3)]
        self.prompt: list[int] = []
        self.bits = [1 << place for place in range(200)]

    def both(self, tier: int, method: str, *args: Any) -> Any:
        one, other = (result(getattr(table, method), *args) for table in self.tiers[tier])
        assert one == other, (method, args)
        return one

    @initialize(first=st.integers(0, SHORT - 10_000), blocks=st.sampled_from([1, 30, 200, 5_000]))
    def choose_prompt(self, first: int, blocks: int) -> None:
        self.prompt = list(range(first, first + blocks))

    @rule(place=st.integers(0, 199), tier=st.integers(0, 2), start=st.floats(0, 1), length=st.floats(0, 1))
    def add(self, place: int, tier: int, start: float, length: float) -> None:
        first = int(start * len(self.prompt)) if tier or place % 3 == 0 else 0
        part = self.prompt[first : first + int(length * len(self.prompt)) + 1]
        entered = self.both(tier, "add", part, self.bits[place])
        assert {*entered} <= {*part}
        assert self.both(tier, "add", part, self.bits[place]) == []

    @rule(some=st.lists(keys | wrong, max_size=80), place=st.integers(0, 199), method=st.sampled_from(["add", "clear"]))
    def any_keys(self, some: list[Any], place: int, method: str) -> None:
        self.both(0, method, some, self.bits[place])

    @rule(place=st.integers(0, 199), tier=st.integers(0, 2), start=st.floats(0, 1), length=st.floats(0, 1))
    def clear(self, place: int, tier: int, start: float, length: float) -> None:
        first = int(start * len(self.prompt))
        part = self.prompt[first : first + int(length * len(self.prompt)) + 1]
        self.both(tier, "clear", part, self.bits[place])

    @rule(
        bits=st.integers(0, 2**64 - 1) | st.integers(0, 2**200 - 1) | st.just(2**200 - 1),
        cut=st.floats(0, 1),
        form=st.sampled_from([list, array]),
    )
    def search(self, bits: int, cut: float, form: Any) -> None:
        part = self.prompt[: int(cut * len(self.prompt)) + 1]
        asked: Sequence[int] = array("Q", part) if form is array else part
        one, other = (table.bisect(asked, bits) for table in self.tiers[0])
        assert list(one.items()) == list(other.items())
        for slower in range(3):
            found = []
            for kind in (0, 1):
                tables = [tier[kind] for tier in self.tiers]
                found.append(tables[0].walk(asked, bits, tuple(tables[1 : 1 + slower])))
            assert list(found[0].items()) == list(found[1].items())

    @rule(key=keys | st.sampled_from([-1, SHORT + 1, 2**64, -(2**80)]))
    def ask(self, key: int) -> None:
        self.both(0, "bits", key)
        for method in ("bisect", "walk"):
            self.both(0, method, [key, *self.prompt[:3]], 2**200 - 1, *[()] * (method == "walk"))

    @invariant()
    def they_are_equal(self) -> None:
        for one, other in self.tiers:
            assert len(one) == len(other)
            assert all(one.bits(key) == other.bits(key) for key in self.prompt[:: 1 + len(self.prompt) // 50])


TestKeyTables = KeyTables.TestCase
TestKeyTables.settings = examples(60, stateful_step_count=30)
TestHolderTables = HolderTables.TestCase
TestHolderTables.settings = examples(60, stateful_step_count=30)


@given(st.lists(keys | wrong, max_size=100))
def test_low_words(some: list[Any]) -> None:
    assert result(bulk.pack_low_words, some) == result(TWIN.pack_low_words, some)


secrets = st.integers(0, 2**64 - 1)


@given(keys | wrong, st.integers(0, 600), st.integers(-1, 240) | st.sampled_from([64, 128]), secrets | wrong, st.data())
def test_chained_keys(parent: int, length: int, width: int, secret: int, data: st.DataObject) -> None:
    ids = array("I", data.draw(st.binary(min_size=4 * length, max_size=4 * length)))
    expected = result(TWIN.chain_keys, parent, ids, width, secret)
    assert result(bulk.chain_keys, parent, ids, width, secret) == expected


@pytest.mark.parametrize("width", range(bulk.LEAST_CHAINED_BYTES, bulk.MOST_CHAINED_BYTES + 1))
def test_every_length_is_hashed_as_the_library_does(width: int) -> None:
    ids = array("I", [number * 0x9E37_79B9 & 0xFFFF_FFFF for number in range(1, 300)])
    for secret in (0, 1, 2**63, 2**64 - 1, 0x0123_4567_89AB_CDEF):
        assert bulk.chain_keys(7, ids, width, secret) == TWIN.chain_keys(7, ids, width, secret)


CALLS: list[tuple[str, str, tuple[Any, ...]]] = [
    ("KeyTable", "add_new", ([1],)),
    ("KeyTable", "add_new", ((1,), (2,))),
    ("KeyTable", "add_new", ([1, 2], [1])),
    ("KeyTable", "add_new", ([None], [1])),
    ("KeyTable", "set", (1,)),
    ("KeyTable", "take_some", ("1",)),
    ("KeyTable", "is_new", (["1"],)),
    ("HolderTable", "add", ([1],)),
    ("HolderTable", "add", ([1], "1")),
    ("HolderTable", "add", ((1,), 1)),
    ("HolderTable", "clear", ([1], None)),
    ("HolderTable", "bisect", (5, 1)),
    ("HolderTable", "bisect", ([1], 1.5)),
    ("HolderTable", "walk", ([1], 1)),
    ("HolderTable", "walk", ([1], 1, (3,))),
    ("HolderTable", "walk", (["1"], 1, ())),
]


@pytest.mark.skipif(not IN_C, reason="nothing is compiled here")
@pytest.mark.parametrize(("kind", "method", "args"), CALLS)
def test_arguments_of_other_types_are_refused(kind: str, method: str, args: tuple[Any, ...]) -> None:
    table = getattr(bulk, kind)()
    assert result(getattr(table, method), *args) in (TypeError, ValueError)
    assert len(table) == 0


@pytest.mark.skipif(not IN_C, reason="nothing is compiled here")
def test_numbers_that_are_chosen_to_meet_do_not_make_the_table_grow_without_end() -> None:
    table = bulk.KeyTable()
    for first in range(0, 1 << 60, 1 << 43):
        if not table.add_new(list(range(first, first + 8)), list(range(8))):
            raise AssertionError(first)
        if len(table) >= 100_000:
            break
    assert sys.getsizeof(table) < 40 * len(table)


@pytest.mark.skipif(not IN_C, reason="nothing is compiled here")
def test_what_is_allocated_is_seen_counted_and_given_back() -> None:
    names = [number * 0x9E37_79B9_7F4A_7C15 & SHORT for number in range(50_000)]
    bits = [1 << place for place in range(100)]
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        keyed, holders = bulk.KeyTable(), bulk.HolderTable()
        assert keyed.add_new(names, names)
        holders.add(names, 1)
        taken = tracemalloc.get_traced_memory()[0] - before
        assert abs(taken - sys.getsizeof(keyed) - sys.getsizeof(holders)) < 10_000
        for bit in bits:
            holders.add(names[:2_000], bit)
            holders.bisect(names[:2_000], sum(bits))
            holders.walk(names, sum(bits), (holders,))
        for bit in bits[1:]:
            holders.clear(names, bit)
        assert [holders.bits(name) for name in names] == [1] * len(names)
        keyed.save()
        keyed.take_some(20_000)
        keyed.take(names)
        holders.clear(names, 1)
        assert len(keyed) == len(holders) == 0
        assert sys.getsizeof(keyed) + sys.getsizeof(holders) < 10_000
        del keyed, holders
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not IN_C, reason="nothing is compiled here")
def test_references_are_given_back() -> None:
    bit, other = 1 << 150, 1 << 151
    held = [sys.getrefcount(number) for number in (bit, other)]
    some = [key + (1 << 40) for key in range(500)]
    counts = [sys.getrefcount(key) for key in some]
    for _ in range(3):
        table = bulk.HolderTable()
        assert table.add(some, bit) == some
        table.add(some[:100], other)
        table.clear(some[:50], bit)
        table.bisect(some, bit | other)
        table.walk(some, bit | other, ())
        assert result(table.add, [*some, -1], bit) is OverflowError
        assert result(table.add, [*some, None], bit) is TypeError
        del table
    assert [sys.getrefcount(number) for number in (bit, other)] == held
    assert [sys.getrefcount(key) for key in some] == counts


some_ids = st.lists(FEW | st.integers(0, 2**32 - 1), max_size=300)
items = st.integers(-(2**63), 2**64 - 1) | FEW | st.floats() | st.booleans() | st.none() | st.text(max_size=3)


engine_hashes = FEW | MANY | st.integers(-(2**70), 2**70) | st.binary(max_size=40)


@given(st.lists(FEW | MANY, max_size=40) | st.lists(engine_hashes, max_size=40) | st.lists(items, max_size=5) | items)
def test_hashes_are_folded_alike(value: Any) -> None:
    folded, expected = bulk.fold_hashes(value), TWIN.fold_hashes(value)
    assert folded == expected
    assert (folded is value) == (expected is value)
    if isinstance(value, list) and all(type(each) is int for each in value):
        assert expected == [each % 2**64 for each in value]


@given(some_ids | st.lists(items, max_size=40) | items | st.dictionaries(FEW, FEW, max_size=2))
def test_ids_are_unpacked_as_msgpack_says(value: Any) -> None:
    packed = msgspec.msgpack.encode(value)
    expected = TWIN.unpack_ids(packed)
    assert bulk.unpack_ids(packed) == bulk.unpack_ids(msgspec.Raw(packed)) == expected
    assert bulk.unpack_ids(packed[:-1]) == TWIN.unpack_ids(packed[:-1])
    assert bulk.unpack_ids(packed + b"\0") == TWIN.unpack_ids(packed + b"\0")
    if isinstance(value, list) and all(type(each) is int and 0 <= each < 2**32 for each in value):
        assert expected == array("I", value).tobytes()


@pytest.mark.parametrize("fill", [0, 1, 0x7F, 0x80, 0xFF])
def test_every_head_is_unpacked_alike(fill: int) -> None:
    for head, width in product(range(256), range(10)):
        packed = bytes([0x91, head, *[fill] * width])
        assert bulk.unpack_ids(packed) == TWIN.unpack_ids(packed), packed.hex()
        assert bulk.unpack_ids(packed[1:]) == TWIN.unpack_ids(packed[1:]), packed[1:].hex()
