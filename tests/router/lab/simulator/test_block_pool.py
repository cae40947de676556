"""The block pool by hand: who is evicted next, what is announced."""

from __future__ import annotations

from router.kvcache.events import BlocksCleared, BlocksRemoved, EngineHash, Tier
from router.lab.simulator.block_pool import BlockPool

A, B, C, D = (EngineHash(n) for n in (0xA, 0xB, 0xC, 0xD))


def removed(*labels: EngineHash) -> list[BlocksRemoved]:
    return [BlocksRemoved(hashes=[label], tier=Tier.GPU, group=0) for label in labels]


def filled(pool: BlockPool, *labels: EngineHash) -> list[int]:
    blocks = pool.take(len(labels))
    pool.label(blocks, labels)
    return blocks


def test_hands_out_its_blocks_in_order_and_announces_nothing_for_empty_ones() -> None:
    pool = BlockPool(3)
    assert pool.take(2) == [0, 1]
    assert pool.free == 1
    assert pool.drain() == []


def test_unhashed_blocks_are_reused_before_any_cached_one() -> None:
    pool = BlockPool(4)
    first = filled(pool, A, B)
    bare = pool.take(1)
    pool.release(first)
    pool.release(bare)
    assert pool.take(2) == [*bare, 3]  # the bare one at once, then the never used one
    assert pool.drain() == []


def test_a_request_loses_its_tail_first() -> None:
    pool = BlockPool(3)
    pool.release(filled(pool, A, B, C))
    pool.take(2)
    assert pool.drain() == removed(C, B)
    assert len(pool.find_leading([A, B, C])) == 1


def test_the_request_released_first_goes_first_unless_it_was_touched_again() -> None:
    pool = BlockPool(4)
    older = filled(pool, A, B)
    newer = filled(pool, C, D)
    pool.release(older)
    pool.release(newer)
    pool.touch(older)
    pool.release(older)
    pool.take(2)
    assert pool.drain() == removed(D, C)


def test_a_touched_block_cannot_be_taken() -> None:
    pool = BlockPool(2)
    blocks = filled(pool, A, B)
    pool.release(blocks)
    pool.touch(pool.find_leading([A]))
    assert pool.free == 1
    assert pool.take(1) == [blocks[1]]


def test_a_block_two_requests_use_is_free_when_both_are_done() -> None:
    pool = BlockPool(1)
    blocks = filled(pool, A)
    pool.touch(blocks)
    pool.release(blocks)
    assert pool.free == 0
    pool.release(blocks)
    assert pool.free == 1


def test_copies_are_removed_one_by_one_and_hit_until_the_last() -> None:
    pool = BlockPool(2)
    pool.release(filled(pool, A))
    pool.release(filled(pool, A))
    assert pool.cached_blocks == 2
    pool.take(1)
    assert pool.drain() == removed(A)
    assert len(pool.find_leading([A])) == 1
    pool.release([0])
    pool.take(2)
    assert pool.drain() == removed(A)
    assert pool.find_leading([A]) == []


def test_leading_stops_at_the_first_hole() -> None:
    pool = BlockPool(4)
    filled(pool, A, C)
    assert len(pool.find_leading([A, B, C])) == 1


def test_reset_is_refused_while_a_block_is_in_use_and_then_forgets_all() -> None:
    pool = BlockPool(2)
    blocks = filled(pool, A)
    assert not pool.reset()
    assert pool.drain() == []
    pool.release(blocks)
    assert pool.reset()
    assert pool.find_leading([A]) == []
    assert pool.drain() == [BlocksCleared()]
    pool.take(2)
    assert pool.drain() == []  # nothing left to remove
