"""What is remembered never changes what comes out: ids, keys and spelling are always those of the whole prompt."""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.clock import SystemClock
from router.config.schema import TokensConfig as Settings
from router.kvcache.block_keys import Keyring
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Chat, Text, UnknownIds
from router.prompt.tokenization.incremental import IncrementalTokenizer, KeyInputs, PreparedPrompt, _root
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.prefix_cache import PrefixCache
from router.prompt.tokenization.segments import FRAGMENTS
from router.prompt.tokenization.threads import TokenizerThreads
from tests.router.prompt.tokenization.families import FAMILIES, family, loaded, word_piece
from tests.suites.properties import examples

T = TypeVar("T")
Message = dict[str, Any]

RING = Keyring(7)
SIZES = frozenset({4, 16})
SPECIAL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_start",
    "[INST]",
    "[/INST]",
    "[SEP]",
    "<｜User｜>",
    "<｜end▁of▁",
)
CODE = ("def f(x):\n\treturn x[1:]  # ok\n", '{"a": [1, 2.0, null]}', "for (;;) {\r\n}\r\n", "SELECT *\nFROM t;")

words = (
    st.sampled_from(FRAGMENTS) | st.sampled_from(SPECIAL) | st.sampled_from(CODE) | st.text(max_size=6) | st.emails()
)
texts = st.lists(words, max_size=8).map("".join)
tools = st.none() | st.lists(texts.map(lambda text: {"type": "function", "function": {"name": text}}), max_size=2)


def message(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


messages = st.builds(message, st.sampled_from(["system", "user", "assistant", "tool"]), texts)


def run(work: Coroutine[Any, Any, T]) -> T:
    """What needs no thread is done in one go, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it waits for something")


class Room:
    def __init__(self, memory_bytes: int = 1 << 30, **changes: Any) -> None:
        self.budget = MemoryBudget(memory_bytes)
        self.memo = PrefixCache(self.budget, b"secret")
        self.settings = Settings(**{"inline_chars": 1 << 30, **changes})
        self.threads = TokenizerThreads(1)
        self.remembering = IncrementalTokenizer(self.settings, RING, self.memo, self.threads, SystemClock())

    def prepare(self, local: LocalTokenizer, source: Chat | Text, chain: KeyInputs) -> PreparedPrompt:
        prepared = self.remembering.prepare(local, source, chain, 1 << 30, SystemClock().now())
        assert isinstance(prepared, PreparedPrompt)
        return prepared

    def tokenize(self, local: LocalTokenizer, source: Chat | Text, chain: KeyInputs) -> TokenizedPrompt:
        known = run(self.remembering.tokenize(self.prepare(local, source, chain)))
        assert isinstance(known, TokenizedPrompt)
        return known

    def ask(self, local: LocalTokenizer, source: Chat | Text, chain: KeyInputs) -> TokenizedPrompt:
        """Checked against the whole, from the beginning."""
        known = self.tokenize(local, source, chain)
        whole = local.tokenize(source)
        assert known.ids == whole
        root = RING.root(*chain[:3])
        assert known.keys == {size: array("Q", RING.chain(root, whole, size)) for size in chain.block_sizes}
        if isinstance(source, Chat):
            assert json.loads(b"[" + b",".join(known.json_ids) + b"]") == whole.tolist()
        else:
            assert known.json_ids == ()
        return known

    @property
    def found(self) -> int:
        return self.remembering.cached_tokens["m"]


def chat(turns: list[Message], *, tools: list[Any] | None = None, special: bool = False, cut: bool = False) -> Chat:
    return Chat(turns, tools, {}, True, False, special, cut)


def chain(salt: str | None = None, adapter: str | None = None, sizes: frozenset[int] = SIZES) -> KeyInputs:
    return KeyInputs("m", adapter, salt, sizes)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.threads.close()


@pytest.mark.parametrize("name", FAMILIES)
@given(
    turns=st.lists(messages, min_size=1, max_size=8),
    tools=tools,
    order=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    memory_bytes=st.sampled_from([0, 2_000, 6_000, 1 << 30]),
    special=st.booleans(),
)
@examples(40)
def test_any_chat_in_any_order_of_its_turns(
    name: str, turns: list[Message], tools: list[Any] | None, order: list[int], memory_bytes: int, special: bool
) -> None:
    room = Room(memory_bytes)
    for length in order:
        room.ask(family(name), chat(turns[:length], tools=tools, special=special), chain())
        assert room.budget.held_bytes <= memory_bytes


@pytest.mark.parametrize("name", FAMILIES)
@given(parts=st.lists(texts, max_size=5), special=st.booleans())
@examples(40)
def test_any_text(name: str, parts: list[str], special: bool) -> None:
    room, local = Room(), family(name)
    for end in (*range(len(parts) + 1), len(parts)):
        room.ask(local, Text("<|im_start|>".join(parts[:end]), special), chain())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_next_turn_tokenises_only_what_is_new(name: str, room: Room) -> None:
    turns = [message(role, f"{role} says number {i}") for i in range(10) for role in ("user", "assistant")]
    room.ask(family(name), chat(turns[:19]), chain())
    first, found = room.remembering.encoded_tokens["m"], room.found
    assert found == 0
    room.ask(family(name), chat([*turns, message("user", "more")]), chain())
    assert room.remembering.encoded_tokens["m"] - first < 0.25 * first
    assert room.found > 0.7 * first


@pytest.mark.parametrize(
    "other", [chain(salt="a"), chain(salt=""), chain(adapter="a"), KeyInputs("n", None, None, SIZES)]
)
def test_nothing_is_found_under_another_salt_adapter_or_model(room: Room, other: KeyInputs) -> None:
    local, source = family("byte-level"), chat([message("user", "what is mine is mine")])
    room.ask(local, source, chain())
    room.ask(local, source, other)
    assert sum(room.remembering.cached_tokens.values()) == 0
    room.ask(local, source, other)
    assert sum(room.remembering.cached_tokens.values()) > 0


def test_what_changes_ids_is_never_mixed_up(room: Room) -> None:
    """With and without special tokens, chat and text, cut and whole: other heads, tails and spellings."""
    local = family("word piece")
    source = chat([message("user", "one two"), message("user", "three")])
    cut = source._replace(messages=[*source.messages, {"role": "user", "content": [{"type": "media"}]}], has_media=True)
    rendered = local.text(source).decode()
    for _ in range(2):
        for special in (True, False):
            room.ask(local, source._replace(add_special_tokens=special), chain())
            room.ask(local, Text(rendered, special), chain())
            known = room.tokenize(local, cut._replace(add_special_tokens=special), chain())
            assert (known.ids, known.complete) == (local.tokenize(cut._replace(add_special_tokens=special)), False)


def test_prompts_that_are_never_cut_are_remembered_as_a_whole(room: Room) -> None:
    """Of a template without a token to cut at; what the tokenizer puts around a whole prompt is in the one piece."""
    local = loaded(word_piece(), template="{% for m in messages %}{{ m.content }};{% endfor %}")
    assert local.whole_prompt_reason is not None
    source = chat([message("user", "one two"), message("user", "three")], special=True)
    cut = source._replace(messages=[{"role": "user", "content": [{"type": "media"}]}], has_media=True)
    rendered = Text(local.text(source).decode(), True)
    for _ in range(2):
        room.ask(local, source, chain())
        room.ask(local, source._replace(has_media=True, messages=[*source.messages, *cut.messages]), chain())
        room.ask(local, rendered, chain())
    before = Chat([message("user", "same ")], None, {}, True, False, True, False)
    names = [_root(one, chain(), True) for one in (before, before._replace(has_media=True))]
    assert names[0] != names[1], "one text, with and without an end"


def test_a_block_size_that_appears_later_needs_no_tokenising(room: Room) -> None:
    local, source = family("byte-level"), chat([message("user", "some words " * 20)])
    room.ask(local, source, chain(sizes=frozenset({16})))
    before = room.budget.held_bytes
    made = room.remembering.encoded_tokens["m"]
    known = room.ask(local, source, chain(sizes=frozenset({4, 16})))
    assert room.remembering.encoded_tokens["m"] == made
    assert room.budget.held_bytes >= before + 8 * len(known.keys[4])
    room.ask(local, source, chain(sizes=frozenset()))


def test_ids_are_spelled_only_where_they_may_be_handed_on() -> None:
    room = Room(token_id_passthrough="off")
    known = room.tokenize(family("byte-level"), chat([message("user", "x")]), chain())
    assert known.json_ids == ()
    room.threads.close()


def watched(monkeypatch: pytest.MonkeyPatch, local: LocalTokenizer, watch: Callable[[bytes], None]) -> None:
    """Call `watch` with every segment before it is tokenised."""
    encode = local.encode_segment

    def encode_segment(segment: bytes, source: Chat | Text) -> list[int]:
        watch(segment)
        return encode(segment, source)

    monkeypatch.setattr(local, "encode_segment", encode_segment)


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_work_that_nobody_waits_for_ends_at_the_next_segment(
    monkeypatch: pytest.MonkeyPatch, hangs_up: bool
) -> None:
    """Its client has left, or its budget has passed. What was done is there the next time."""
    local, source = family("byte-level"), chat([message("user", f"{i} a long prompt " * 9) for i in range(20)])
    room = Room(inline_chars=100, budget_ms=60_000.0 if hangs_up else 20.0)
    begun, gate, seen = threading.Event(), threading.Event(), list[bytes]()

    def hold(segment: bytes) -> None:
        seen.append(segment)
        begun.set()
        gate.wait(10)

    watched(monkeypatch, local, hold)
    asked = asyncio.ensure_future(room.remembering.tokenize(room.prepare(local, source, chain())))
    await asyncio.to_thread(begun.wait, 10)
    if hangs_up:
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    else:
        assert await asked == UnknownIds("tokens_late")
    gate.set()
    await room.threads.run(lambda: None, 10.0)  # behind it in the only thread
    prepared = room.prepare(local, source, chain())
    assert len(seen) == 1 < len(prepared.parts.segments)
    room.remembering._settings = Settings()
    known = await room.remembering.tokenize(prepared)
    assert isinstance(known, TokenizedPrompt)
    assert known.ids == local.tokenize(source)
    assert len(seen) == len(prepared.parts.segments)
    room.threads.close()


async def test_a_prompt_longer_than_its_model_takes_is_not_tokenised(room: Room) -> None:
    local, source = family("byte-level"), Text("four words in here", True)
    size = len(local.text(source))
    assert isinstance(room.remembering.prepare(local, source, chain(), size, 0.0), PreparedPrompt)
    assert room.remembering.prepare(local, source, chain(), size - 1, 0.0) == UnknownIds("too_long")


class Conversations(RuleBasedStateMachine):
    """Chats that grow, are cut short and branch, of several tenants and adapters, in memory for a few of them."""

    def __init__(self) -> None:
        super().__init__()
        self.chats: list[list[Message]] = [[message("user", "begin")]]

    @initialize(name=st.sampled_from(["byte-level", "prepended", "word piece"]), memory_bytes=st.integers(0, 20_000))
    def open(self, name: str, memory_bytes: int) -> None:
        self.local = family(name)
        self.room = Room(memory_bytes)

    @rule(which=st.integers(0, 9), new=st.lists(messages, min_size=1, max_size=3))
    def goes_on(self, which: int, new: list[Message]) -> None:
        self.chats[which % len(self.chats)].extend(new)

    @rule(which=st.integers(0, 9), left=st.integers(1, 4), new=messages)
    def branches(self, which: int, left: int, new: Message) -> None:
        self.chats.append([*self.chats[which % len(self.chats)][:left], new])

    @rule(
        which=st.integers(0, 9),
        salt=st.sampled_from([None, "", "a", "b"]),
        adapter=st.sampled_from([None, "a"]),
        sizes=st.sampled_from([frozenset({4}), frozenset({16}), SIZES, frozenset()]),
        special=st.booleans(),
    )
    def asks(self, which: int, salt: str | None, adapter: str | None, sizes: frozenset[int], special: bool) -> None:
        turns = self.chats[which % len(self.chats)]
        self.room.ask(self.local, chat(turns, special=special), chain(salt, adapter, sizes))

    @invariant()
    def stays_within_its_budget(self) -> None:
        if hasattr(self, "room"):
            kept = self.room.memo._entries.values()
            assert self.room.budget.held_bytes == sum(one.bytes for one in kept) <= self.room.budget.limit_bytes
            assert all(one.bytes == one.segment.memory_bytes for one in kept)

    def teardown(self) -> None:
        if hasattr(self, "room"):
            self.room.threads.close()


Conversations.TestCase.settings = examples(40, stateful_step_count=25)
TestConversations = Conversations.TestCase
