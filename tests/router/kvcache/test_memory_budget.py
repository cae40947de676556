"""One limit for all who remember."""

from __future__ import annotations

from router.kvcache.memory_budget import MemoryBudget


def test_whoever_needs_room_what_can_be_forgotten_goes() -> None:
    budget = MemoryBudget(100)
    pieces = [30, 30, 30]

    def forget_oldest() -> bool:
        if not pieces:
            return False
        budget.give(pieces.pop())
        return True

    budget.set_evictor(forget_oldest)
    for size in pieces[:]:
        budget.take(size)
    assert (budget.held_bytes, budget.evicted) == (90, 0)
    budget.take(50)  # 140: two of the pieces make room
    assert (budget.held_bytes, budget.evicted, pieces) == (80, 2, [30])
    budget.give(50)
    assert budget.held_bytes == 30


def test_what_cannot_be_forgotten_may_exceed_it() -> None:
    budget = MemoryBudget(10)
    budget.take(25)
    assert (budget.held_bytes, budget.limit_bytes, budget.evicted) == (25, 10, 0)
