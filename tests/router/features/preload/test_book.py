"""What was loaded ahead: each token counts once, by the first request that asks for it."""

from __future__ import annotations

from router.features.preload import book as module
from router.features.preload.book import PreloadBook, PreloadedPrefix
from router.kvcache.events import Key, TargetId

A = TargetId("a/0")
KEYS = tuple(map(Key, (11, 12, 14, 18)))  # of 1, 2, 4 and 8 blocks of 4 tokens


def prefix(blocks: int = 8, computed: int = 32, pooled: int = 0) -> PreloadedPrefix:
    return PreloadedPrefix(A, "join", 0.0, 4 * blocks, computed, pooled, 1.0)


def test_the_first_request_counts_and_later_ones_do_not() -> None:
    book = PreloadBook()
    assert not book
    loaded = prefix(computed=20, pooled=12)
    book.add(loaded, KEYS)
    assert book
    assert book.on_answer(TargetId("b/0"), KEYS, 40) is None
    assert book.on_answer(A, (99,), 40) is None
    assert book.on_answer(A, (*KEYS[:3], 98), 16) == 16  # it goes on in another way after 4 blocks
    assert book.on_answer(A, KEYS[:3], 16) is None
    assert (loaded.hit_tokens, loaded.lost_tokens) == (16, 0)
    assert book.on_answer(A, KEYS, 32) == 16
    assert not book
    assert (loaded.loaded_tokens, loaded.hit_tokens) == (32, 32)
    assert dict(book.loaded_tokens) == {("join", "computed"): 20, ("join", "pool"): 12}
    assert dict(book.settled_tokens) == {("join", "hit"): 32}


def test_what_is_gone_when_it_is_asked_for_is_lost_for_good() -> None:
    book = PreloadBook()
    book.add(loaded := prefix(), KEYS)
    assert book.on_answer(A, KEYS, 8) == 8  # the first 2 blocks are there still
    assert book.on_answer(A, KEYS, 32) is None  # the others were computed by the request before
    assert (loaded.hit_tokens, loaded.lost_tokens) == (8, 24)
    assert dict(book.settled_tokens) == {("join", "hit"): 8, ("join", "lost"): 24}


def test_what_the_target_had_before_does_not_count() -> None:
    book = PreloadBook()
    book.add(prefix(computed=22), KEYS)  # it had 10 tokens
    assert book.on_answer(A, KEYS, 32) == 22


def test_another_process_settles_it_without_counting_it() -> None:
    one, other = PreloadBook(), PreloadBook()
    one.on_loaded = other.expect
    told: list[dict[Key, bool]] = []
    other.on_settled = lambda target, found: (told.append(found), one.settle(target, found))
    one.add(loaded := prefix(), KEYS)
    assert other.on_answer(A, KEYS, 16) == 16
    assert told == [{11: True, 12: True, 14: True, 18: False}]
    assert not one
    assert (loaded.hit_tokens, loaded.lost_tokens) == (16, 16)
    assert not one.settled_tokens  # else the sum over processes would have it twice
    assert not other.loaded_tokens


def test_it_is_bounded_and_forgets_targets_that_left(monkeypatch) -> None:
    monkeypatch.setattr(module, "KEYS_KEPT", 6)
    book = PreloadBook()
    book.add(prefix(), KEYS)
    book.expect(TargetId("b/0"), "join", KEYS, 32, 32)
    assert book.on_answer(A, KEYS, 32) == 24  # the oldest two, of 8 tokens, are not waited for
    book.forget(TargetId("b/0"))
    assert not book
