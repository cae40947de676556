"""What was said of blocks, while it counts."""

from __future__ import annotations

import pytest

from router.config.sections.pool import HashAlgo
from router.features.pool.answer_cache import AnswerCache, BlockPresence, event_hashes
from router.kvcache.engine_hashes import EngineChain


def test_a_word_counts_for_its_time_and_tells_its_age() -> None:
    answers = AnswerCache(ttl_s=0.5, limit_blocks=10)
    answers.record([(1, BlockPresence.MEMORY), (2, BlockPresence.ABSENT)], at=100.0)
    answers.record([(3, BlockPresence.DISK)], at=100.2)
    words, oldest = answers.lookup([3, 1, 9, 2], now=100.4)
    assert list(words) == [BlockPresence.DISK, BlockPresence.MEMORY, BlockPresence.UNKNOWN, BlockPresence.ABSENT]
    assert oldest == 100.0
    words, oldest = answers.lookup([3, 1, 9, 2], now=100.5)
    assert list(words) == [BlockPresence.DISK, BlockPresence.UNKNOWN, BlockPresence.UNKNOWN, BlockPresence.UNKNOWN]
    assert oldest == 100.2
    assert len(answers) == 1
    assert answers.lookup([3], now=101.0) == (bytearray(1), None)


def test_a_late_answer_does_not_overrule_a_later_word_nor_outlive_its_time() -> None:
    answers = AnswerCache(ttl_s=0.5, limit_blocks=10)
    answers.record([(1, BlockPresence.MEMORY)], at=100.3)  # an event said so, while the question was under way
    answers.record([(1, BlockPresence.ABSENT), (2, BlockPresence.ABSENT)], at=100.0)
    words, _ = answers.lookup([1, 2], now=100.4)
    assert list(words) == [BlockPresence.MEMORY, BlockPresence.ABSENT]
    words, _ = answers.lookup([1, 2], now=100.6)
    assert list(words) == [BlockPresence.MEMORY, BlockPresence.UNKNOWN]


def test_the_newest_are_kept() -> None:
    answers = AnswerCache(ttl_s=0.5, limit_blocks=3)
    answers.record([(label, BlockPresence.MEMORY) for label in range(3)], at=100.0)
    answers.record([(0, BlockPresence.MEMORY), (7, BlockPresence.DISK)], at=100.1)
    assert len(answers) == 3
    words, _ = answers.lookup([0, 1, 2, 7], now=100.2)
    assert list(words) == [BlockPresence.MEMORY, BlockPresence.UNKNOWN, BlockPresence.MEMORY, BlockPresence.DISK]


def test_cleared_is_unknown() -> None:
    answers = AnswerCache(ttl_s=0.5, limit_blocks=3)
    answers.record([(0, BlockPresence.MEMORY)], at=100.0)
    answers.clear()
    assert answers.lookup([0], now=100.0) == (bytearray(1), None)


@pytest.mark.parametrize("algo", ["sha256_cbor", "xxhash_cbor"])
def test_labels_are_those_of_events(algo: HashAlgo) -> None:
    digests = EngineChain(algo, "0").chain(None, range(40), 4)
    assert list(event_hashes(digests)) == [EngineChain.event_hash(digest) for digest in digests]
    assert list(event_hashes([])) == []
