"""Tokenises a prompt incrementally: render, segment, look the segments up, tokenise only the new ones.

    render, segment, name (a hash per segment) -> prefix cache -> copy hits, tokenise the rest -> prefix cache

Everything runs at once on the event loop where the new part is short; a long new part runs in a thread, and so does the
first step for very large bodies. Rendering, naming and copying the 340 KB of an 80,000-token chat take 1 to 3 ms,
tokenising them 70 ms.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from router.clock import Clock
from router.config.schema import TokensConfig as Settings
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Chat, Text, UnknownIds
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.local_tokenizer import LocalTokenizer, SegmentedPrompt
from router.prompt.tokenization.prefix_cache import CachedSegment, Name, Prefix, PrefixCache, make_segment

QUEUED_PER_THREAD = 16  # more would exceed their budget before they start
RENDERED_ON_LOOP_BYTES = 500_000  # body size; 2 to 5 ms

T = TypeVar("T")


class KeyInputs(NamedTuple):
    """Inputs of block keys besides token ids."""

    model: str
    adapter: str | None
    salt: str | None
    block_sizes: frozenset[int]


class _Task(NamedTuple):
    """A prompt and its deadline."""

    local: LocalTokenizer
    source: Chat | Text
    chain: KeyInputs
    spell: bool
    begun_s: float

    @property
    def root(self) -> bytes:
        """Identity of all that determines ids and keys but the text. `repr` is unambiguous and has no NUL."""
        source = self.source
        cut = isinstance(source, Chat) and source.has_media
        return repr((*self.chain[:3], source.add_special_tokens, cut, self.spell)).encode() + b"\0"


class _NamedSegments(NamedTuple):
    parts: SegmentedPrompt
    names: list[Name]


class _Result(NamedTuple):
    known: TokenizedPrompt
    new: list[CachedSegment]


def _discard(made: object) -> None:
    """Drop the result."""


class TokenizerThreads:
    """Worker threads for tokenising that would block the event loop: bounded in number and in time.

    A caller gets a result or a timeout; after a timeout the work continues, and its result still reaches the cache.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="warmroute-tokens")
        self._max_queued = QUEUED_PER_THREAD * threads
        self._queued = 0

    async def run(self, work: Callable[[], T], within_s: float, done: Callable[[T], None] = _discard) -> T | UnknownIds:
        """Return the result of `work`, or why it is late; `done` gets it on the event loop even after a timeout."""
        if self._queued >= self._max_queued:
            return UnknownIds("tokens_busy")
        self._queued += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(partial(self._on_done, done))
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(future)
        except TimeoutError:
            return UnknownIds("tokens_late")

    def close(self) -> None:
        """Stop accepting work; running work is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _on_done(self, done: Callable[[T], None], future: asyncio.Future[T]) -> None:
        self._queued -= 1
        if not future.cancelled() and future.exception() is None:
            done(future.result())


class IncrementalTokenizer:
    """Tokenises prompts with local tokenizers and a prefix cache."""

    def __init__(
        self, settings: Settings, keyring: Keyring, prefix_cache: PrefixCache, threads: TokenizerThreads, clock: Clock
    ) -> None:
        self._settings = settings
        self._keyring = keyring
        self._prefix_cache = prefix_cache
        self._threads = threads
        self._clock = clock
        self.cached_tokens: Counter[str] = Counter()  # prompt tokens found in the cache, by model
        self.encoded_tokens: Counter[str] = Counter()  # prompt tokens tokenised, by model

    async def tokenize(
        self, local: LocalTokenizer, source: Chat | Text, chain: KeyInputs, body_bytes: int, *, remember: bool = True
    ) -> TokenizedPrompt | UnknownIds:
        """Return ids and keys of `source`, within the budget. `body_bytes` decides whether rendering runs in a thread;
        without `remember`, nothing is stored or counted.
        """
        spell = self._settings.token_id_passthrough == "auto" and isinstance(source, Chat)
        task = _Task(local, source, chain, spell, self._clock.now())
        in_thread = body_bytes > max(RENDERED_ON_LOOP_BYTES, self._settings.inline_chars)
        prepared = await self._run(partial(self._prepare, task), task, in_thread)
        if isinstance(prepared, UnknownIds):
            return prepared
        found = self._prefix_cache.find(prepared.names)
        prefix = Prefix(self._keyring, self._keyring.root(*chain[:3]), chain.block_sizes)
        for segment in (make_segment(prepared.parts.head, spell=spell), *found):
            prefix.add(segment)
        new = prepared.parts.segments[len(found) :]
        work = partial(self._encode, task, prefix, new, prepared.parts.tail)
        store = partial(self._store, task, prepared.names, found) if remember else _discard
        result = await self._run(work, task, sum(map(len, new)) > self._settings.inline_chars, store)
        return result if isinstance(result, UnknownIds) else result.known

    async def _run(
        self, work: Callable[[], T], task: _Task, in_thread: bool, done: Callable[[T], None] = _discard
    ) -> T | UnknownIds:
        if in_thread:
            left_s = self._settings.budget_ms / 1000 - (self._clock.now() - task.begun_s)
            return await self._threads.run(work, left_s, done)
        result = work()
        done(result)
        return result

    def _prepare(self, task: _Task) -> _NamedSegments | UnknownIds:
        try:
            text = task.local.text(task.source)
        except UnrenderableChat:
            return UnknownIds("template_refused")
        parts = task.local.segment(text, task.source)
        return _NamedSegments(parts, self._prefix_cache.name_segments(task.root, parts.segments))

    def _encode(self, task: _Task, prefix: Prefix, new: list[bytes], tail: list[int]) -> _Result:
        """Tokenise the `new` segments onto `prefix`, which no other task uses. Segment by segment, because a thread
        releases the interpreter to the event loop only while it tokenises.
        """
        segments, keys_s = [], 0.0
        for text in new:
            segments.append(make_segment(task.local.encode_segment(text, task.source), spell=task.spell))
            tokenised_s = self._clock.now()
            prefix.add(segments[-1])
            keys_s += self._clock.now() - tokenised_s
        prefix.add(make_segment(tail, spell=task.spell))
        tokens = TokenizedPrompt(
            ids=prefix.ids,
            complete=not (isinstance(task.source, Chat) and task.source.has_media),
            source="local",
            keys=prefix.keys,
            tokens_ms=(self._clock.now() - task.begun_s - keys_s) * 1000,
            keys_ms=keys_s * 1000,
            json_ids=tuple(prefix.json_ids),
        )
        return _Result(tokens, segments)

    def _store(self, task: _Task, names: list[Name], found: list[CachedSegment], result: _Result) -> None:
        self._prefix_cache.store(names, [*found, *result.new])
        self.cached_tokens[task.chain.model] += sum(len(segment.ids) for segment in found)
        self.encoded_tokens[task.chain.model] += sum(len(segment.ids) for segment in result.new)
