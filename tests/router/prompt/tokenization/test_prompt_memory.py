"""Which prompts are remembered, who finds them, and how much memory that takes."""

from __future__ import annotations

import json
import random
import tracemalloc

from msgspec import Raw

from router.kvcache.memory_budget import MemoryBudget
from router.prompt.api.known_messages import read_messages
from router.prompt.known_prompt import NamedText, ReadMessages
from router.prompt.tokenization.named_text import continue_text, encode_rest, name_rest
from router.prompt.tokenization.prefix_cache import PrefixCache
from router.prompt.tokenization.prompt_memory import SHARE, STEP_BYTES, PromptMemory, measure

BUDGET = 1 << 26


def chat(seed: int, messages: int) -> bytes:
    """Return an array of messages of 1 KB each."""
    dice = random.Random(seed)
    return json.dumps([{"role": "user", "content": dice.randbytes(500).hex()} for _ in range(messages)]).encode()


def read(memory: PromptMemory, raw: bytes, owner: bytes = b"a\0") -> ReadMessages:
    found = read_messages(Raw(raw), lambda raw: memory.find(owner, raw))
    assert found is not None
    return found


def remember(memory: PromptMemory, raw: bytes, owner: bytes = b"a\0") -> ReadMessages:
    found = read(memory, raw, owner)
    memory.store(owner, found, text(found))
    return found


def text(read: ReadMessages) -> NamedText:
    chunks = [part for one in read.messages for part in ("<|>" + str(one["content"][0]["text"]), "\n")]
    made = continue_text(chunks, b"root", None, 3)
    segments = [b"<|>" + one for one in encode_rest(made).split(b"<|>")[1:]]
    name_rest(made, segments, PrefixCache(MemoryBudget(0), b"").begin_hash)
    return made


def test_a_chat_finds_what_it_continues_or_has_in_common() -> None:
    memory = PromptMemory(MemoryBudget(BUDGET))
    turns = json.loads(chat(1, 60))
    raw = json.dumps(turns[:50]).encode()
    assert remember(memory, raw).known is None
    assert read(memory, json.dumps(turns).encode()).known_messages == 50
    assert read(memory, raw).known_messages == 50, "the same once more"
    assert read(memory, json.dumps([*turns[:30], *turns[40:]]).encode()).known_messages == 30
    assert read(memory, json.dumps(turns[:20]).encode()).known_messages == 20
    assert read(memory, json.dumps(turns[1:]).encode()).known is None
    assert read(memory, json.dumps(turns, separators=(",", ":")).encode()).known_messages == 0


def test_owners_share_nothing() -> None:
    memory = PromptMemory(MemoryBudget(BUDGET))
    raw = chat(1, 40)
    remember(memory, raw, b"a\0")
    assert read(memory, raw, b"b\0").known is None
    assert read(memory, raw, b"a\0").known is not None


def test_a_turn_takes_the_place_of_the_one_before_it() -> None:
    budget = MemoryBudget(BUDGET)
    memory = PromptMemory(budget)
    turns = json.loads(chat(1, 60))
    for length in range(20, 60, 5):
        remember(memory, json.dumps(turns[:length]).encode())
    assert len(memory) == 1
    last = remember(memory, json.dumps(turns[:55]).encode())
    assert memory.held_bytes == budget.held_bytes == measure(last, text(last))
    remember(memory, json.dumps([*turns[:30], *turns[40:]]).encode())
    assert len(memory) == 2, "a branch beside it"
    assert read(memory, json.dumps(turns[:55]).encode()).known_messages == 55


def test_it_takes_a_share_of_the_budget_and_forgets_the_oldest() -> None:
    size = measure(
        read(PromptMemory(MemoryBudget(0)), chat(0, 40)), text(read(PromptMemory(MemoryBudget(0)), chat(0, 40)))
    )
    budget = MemoryBudget(SHARE * 3 * size + size)
    memory = PromptMemory(budget)
    for seed in range(5):
        remember(memory, chat(seed, 40))
        assert memory.held_bytes == budget.held_bytes <= budget.limit_bytes // SHARE
    assert len(memory) == 3
    assert [read(memory, chat(seed, 40)).known is not None for seed in range(5)] == [False, False, True, True, True]
    assert set(memory._found) == {digest for seed in (2, 3, 4) for digest in read(memory, chat(seed, 40)).digests}
    remember(memory, chat(9, 400))
    assert len(memory) == 3, "one that is larger than the share is not remembered"
    remember(PromptMemory(MemoryBudget(0)), chat(1, 40))


def test_the_estimate_is_near_what_is_allocated() -> None:
    raws = [chat(seed, 100) for seed in range(20)]
    assert len(raws[0]) > 10 * STEP_BYTES
    memory = PromptMemory(MemoryBudget(1 << 30))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for raw in raws:
            remember(memory, raw)
        allocated = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.8 * allocated < memory.held_bytes < 1.5 * allocated
