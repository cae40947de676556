"""The table by hand, and both ways through it held together where both are right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.block_holders import BlockHolders, single_bits
from router.kvcache.events import Key, Tier

ONE, TWO, FOUR = 1, 2, 4
PROMPT = [Key(number) for number in range(100, 108)]


class Asked(list[Key]):
    """A prompt that knows which of its blocks were looked at one by one, and whether it was walked."""

    def __init__(self, keys: list[Key]) -> None:
        super().__init__(keys)
        self.looked_at: list[int] = []
        self.walked = False

    def __getitem__(self, position: int) -> Key:  # type: ignore[override]
        self.looked_at.append(position)
        return super().__getitem__(position)

    def __iter__(self) -> Iterator[Key]:
        self.walked = True
        return super().__iter__()


@pytest.fixture
def holders() -> BlockHolders:
    made = BlockHolders()
    made.add(Tier.GPU, PROMPT[:3], ONE)
    made.add(Tier.GPU, PROMPT[:6], TWO)
    return made


def test_entering_tells_what_is_new_and_counts_it(holders: BlockHolders) -> None:
    assert holders.add(Tier.GPU, PROMPT[:5], ONE) == PROMPT[3:5]
    assert holders.add(Tier.GPU, PROMPT[6:], FOUR) == PROMPT[6:]
    assert holders.blocks == [3 + 6 + 2 + 2, 0, 0]


def test_who_leaves_takes_only_its_own(holders: BlockHolders) -> None:
    holders.remove(Tier.GPU, PROMPT[2:3], ONE)
    assert holders.bisect(PROMPT, ONE | TWO) == {ONE: 2, TWO: 6}
    assert holders.bisect(PROMPT[:2], ONE | TWO) == {ONE | TWO: 2}
    holders.remove(Tier.GPU, PROMPT[:6], TWO)
    assert [holders.tables[Tier.GPU].bits(key) for key in PROMPT] == [ONE, ONE, 0, 0, 0, 0, 0, 0]
    assert holders.blocks == [2, 0, 0]


def test_the_only_holder_is_named_by_its_own_bit_object(holders: BlockHolders) -> None:
    bit = 1 << 70
    holders.add(Tier.GPU, PROMPT[6:], bit)
    assert all(holders.tables[Tier.GPU].bits(key) is bit for key in PROMPT[6:])


def test_bisecting_asks_few_blocks_and_walking_asks_all(holders: BlockHolders) -> None:
    asked = Asked(PROMPT)
    assert holders.bisect(asked, TWO) == {TWO: 6}
    assert len(asked.looked_at) <= 4, "log2(8) + 1"
    assert not asked.walked
    assert holders.walk(Tier.GPU, asked, TWO) == {TWO: 6}
    assert asked.walked


def test_a_walk_ends_at_the_first_hole_and_slower_tiers_fill_it(holders: BlockHolders) -> None:
    holders.remove(Tier.GPU, PROMPT[1:2], ONE)
    holders.add(Tier.CPU, PROMPT[1:2], ONE)
    holders.add(Tier.DISK, PROMPT[3:4], ONE)
    runs = [holders.walk(tier, PROMPT, ONE | TWO) for tier in Tier]
    assert runs == [{ONE: 1, TWO: 6}, {ONE: 3, TWO: 6}, {ONE: 4, TWO: 6}]


def test_of_nothing_and_for_nobody_there_is_no_run(holders: BlockHolders) -> None:
    for keys, bits in (([], ONE), (PROMPT, 0), (PROMPT, FOUR)):
        assert holders.bisect(keys, bits) == holders.walk(Tier.GPU, keys, bits) == {}


def test_the_single_bits() -> None:
    assert list(single_bits(0b1011 << 70)) == [1 << 70, 1 << 71, 1 << 73]


@given(st.lists(st.integers(0, 40), max_size=70), st.integers(0, 40))
def test_where_all_is_whole_both_ways_agree(depths: list[int], length: int) -> None:
    holders, prompt = BlockHolders(), [Key(number) for number in range(500, 540)]
    for number, depth in enumerate(depths):
        holders.add(Tier.GPU, prompt[:depth], 1 << number)
    everybody = (1 << len(depths)) - 1
    expected = {1 << n: min(depth, length) for n, depth in enumerate(depths) if min(depth, length)}
    bisected = holders.bisect(prompt[:length], everybody)
    assert {bit: blocks for bits, blocks in bisected.items() for bit in single_bits(bits)} == expected
    assert len(bisected) == len(set(expected.values())), "who goes equally far goes together"
    assert holders.walk(Tier.GPU, prompt[:length], everybody) == bisected
