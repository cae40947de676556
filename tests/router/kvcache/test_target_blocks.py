"""The blocks of one target where the index cannot show them: keys that enter, and what stays when blocks go."""

from __future__ import annotations

from array import array

import pytest

from router.kvcache.block_holders import BlockHolders
from router.kvcache.block_keys import Keyring
from router.kvcache.bulk import SHORT
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Tier
from router.kvcache.orphans import CROWDED_BLOCKS
from router.kvcache.target_blocks import EARLY_ENTRIES, TargetBlocks

RING = Keyring(2)
PROMPT = RING.chain(RING.root("m", None, None), list(range(8)), 1)


def stored(first: int, last: int, tier: Tier = Tier.GPU, group: int = 0) -> BlocksStored:
    """Blocks `first` to `last` of one chain; their engine hashes are beyond 60 bits."""
    hashes = [EngineHash((number + 1) << 60 | number) for number in range(8)]
    parent = hashes[first - 1] if first else None
    return BlocksStored(
        hashes[first : last + 1], parent, list(range(first, last + 1)), 1, tier, group, None, None, None
    )


def removed(*blocks: int) -> BlocksRemoved:
    return BlocksRemoved([EngineHash((number + 1) << 60 | number) for number in blocks], Tier.GPU, 0)


@pytest.fixture
def shelf() -> TargetBlocks:
    return TargetBlocks("m", 1, BlockHolders(), {}, RING, orphan_blocks=100)


def test_blocks_in_order_enter_with_the_keys_of_their_chain(shelf: TargetBlocks) -> None:
    assert shelf.store(stored(0, 2)) == PROMPT[:3]
    assert shelf.store(stored(3, 5)) == PROMPT[3:6]
    shelf.remove(removed(5, 4))
    assert shelf.store(stored(4, 7)) == PROMPT[4:]
    assert shelf.contiguous


def test_what_waited_for_its_parent_enters_with_it(shelf: TargetBlocks) -> None:
    assert shelf.store(stored(2, 3)) == [], "an orphan"
    assert shelf.store(stored(0, 1)) == PROMPT[:4]
    assert shelf.store(stored(3, 4)) == PROMPT[4:5]
    assert shelf.contiguous
    assert shelf.keyed_blocks == 5


def test_events_of_blocks_that_are_gone_do_not_wait_for_ever() -> None:
    shelf = TargetBlocks("m", 1, BlockHolders(), {}, RING, orphan_blocks=1000)
    gone = [EngineHash(number) for number in range(104, 100 + CROWDED_BLOCKS)]
    shelf.store(BlocksStored(gone, EngineHash(99), [0] * len(gone), 1, Tier.GPU, 0, None, None, None))
    shelf.store(stored(2, 3))
    shelf.remove(BlocksRemoved([*gone, *removed(3).hashes], Tier.GPU, 0))
    assert shelf.orphans == CROWDED_BLOCKS - 2
    shelf.store(stored(5, 6))
    assert shelf.orphans == 4, "blocks 2, 5 and 6 are held"
    assert shelf.store(stored(0, 1)) == PROMPT[:3]
    assert shelf.orphans == 2


@pytest.mark.parametrize(
    "event", [stored(0, 0, tier=Tier.CPU), stored(0, 0, group=1), removed(1)], ids=["tier", "group", "hole"]
)
def test_other_tiers_other_groups_and_holes_end_wholeness(
    shelf: TargetBlocks, event: BlocksStored | BlocksRemoved
) -> None:
    shelf.store(stored(0, 2))
    assert shelf.contiguous
    shelf.store(event) if isinstance(event, BlocksStored) else shelf.remove(event)
    assert not shelf.contiguous


def test_a_hash_twice_in_one_event_is_two_copies(shelf: TargetBlocks) -> None:
    shelf.store(stored(0, 0))
    twice = stored(1, 1)
    shelf.store(twice._replace(hashes=twice.hashes * 2, token_ids=[1, 1]))
    shelf.remove(removed(1))
    assert shelf.keyed_blocks == 2
    shelf.remove(removed(1, 1, 1))
    assert shelf.keyed_blocks == 1
    assert shelf.contiguous


def test_hashes_are_known_by_sixty_bits(shelf: TargetBlocks) -> None:
    shelf.store(stored(0, 2))
    (names,) = [names for _, names in shelf.tables() if names]
    assert [number in names for number in range(4)] == [True, True, True, False]
    assert sorted(array("Q", names.save()[0])) == [0, 1, 2]
    assert max(PROMPT) <= SHORT


def sized(size: int, *numbers: int, start: int = 0, group: int = 0) -> BlocksStored:
    """Blocks of `size` tokens with these hashes, the first one of them after `start` tokens."""
    tokens = list(range(start, start + size * len(numbers)))
    hashes = [EngineHash(number) for number in numbers]
    return BlocksStored(hashes, EngineHash(9999) if start else None, tokens, size, Tier.GPU, group, None, None, None)


@pytest.mark.parametrize("start", [0, 8, 12], ids=["of the first block", "after a block", "of an unannounced parent"])
def test_an_entry_inside_a_block_is_skipped(shelf: TargetBlocks, start: int) -> None:
    shelf.store(sized(8, 1, 9999))
    assert shelf.store(sized(2, 50, start=start)) == []
    assert (shelf.block_tokens, shelf.orphans, shelf.keyed_blocks) == (8, 0, 2)
    assert (shelf.partial, shelf.uncounted, shelf.contiguous) == (1, 1, True)
    shelf.remove(BlocksRemoved([EngineHash(50)], Tier.GPU, 0))
    assert (shelf.keyed_blocks, shelf.contiguous) == (2, True)
    assert shelf.store(sized(8, 3, start=16)), "a block of one event is no such entry"


def test_an_entry_that_comes_before_any_block_makes_way_for_the_size_of_one(shelf: TargetBlocks) -> None:
    shelf.store(sized(2, 50))
    assert shelf.block_tokens == 2
    assert len(shelf.store(sized(8, 1))) == 1
    assert shelf.block_tokens == 8
    assert (shelf.keyed_blocks, shelf.partial, shelf.unit) == (1, 1, 2)
    shelf.store(sized(2, 51, start=8))
    assert (shelf.block_tokens, shelf.partial) == (8, 2)


def test_smaller_blocks_in_a_row_are_another_size(shelf: TargetBlocks) -> None:
    """Of an engine that was started anew, unnoticed: an entry inside a block comes alone."""
    shelf.store(sized(8, 1, 2))
    assert len(shelf.store(sized(2, 50, 51))) == 2
    assert shelf.block_tokens == 2
    shelf.store(sized(2, 52))
    assert (shelf.keyed_blocks, shelf.partial) == (5, 0)


def test_a_group_of_smaller_blocks_has_no_partial_entries_for_that(shelf: TargetBlocks) -> None:
    shelf.store(sized(8, 1))
    assert len(shelf.store(sized(2, 2, group=1))) == 1
    assert (shelf.partial, shelf.block_tokens) == (0, 8)


def test_copies_that_a_gpu_has_no_room_for_are_none(shelf: TargetBlocks) -> None:
    """As with `kv_cache_report_mode: full`: the engine announces again what it holds."""
    shelf.store(stored(0, 4))
    assert shelf.fits(7)
    shelf.store(stored(0, 2))
    assert shelf.counts_copies
    assert not shelf.fits(4)
    assert shelf.fits(7)
    assert not shelf.counts_copies
    shelf.remove(removed(2))
    shelf.store(stored(0, 1))
    assert shelf.uncounted == 2
    shelf.remove(removed(1, 0))
    assert shelf.keyed_blocks == 2
    assert shelf.blocks == [2, 0, 0]


def test_what_a_gpu_has_room_for_may_be_copies(shelf: TargetBlocks) -> None:
    shelf.store(stored(0, 4))
    shelf.store(stored(4, 4))
    assert shelf.fits(6)
    shelf.remove(removed(4))
    assert shelf.keyed_blocks == 5


def test_a_unit_divides_its_blocks(shelf: TargetBlocks) -> None:
    """A smaller entry of another size is skipped: it is none of this engine's."""
    shelf.store(sized(8, 1, 2))
    shelf.store(sized(3, 50))
    assert (shelf.unit, shelf.block_tokens, shelf.keyed_blocks) == (None, 8, 2)
    shelf.store(sized(2, 51))
    assert shelf.unit == 2


def test_many_blocks_of_another_size_are_no_entries(shelf: TargetBlocks) -> None:
    """They are of an engine that was started anew, unnoticed."""
    shelf.store(sized(4, *range(1, EARLY_ENTRIES + 2)))
    shelf.store(sized(8, 5000))
    assert (shelf.partial, shelf.keyed_blocks) == (0, EARLY_ENTRIES + 2)
