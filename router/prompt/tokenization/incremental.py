"""A prompt's ids and keys, made here: rendered, taken apart, looked up, and only what is new in it tokenised.

    render, cut, name (a hash per piece) -> memo -> copy what is found, tokenise the rest -> memo

All of it is done at once on the event loop where what is new is short; a long rest goes to a thread, and so does the
first step for bodies that are very large. Rendering, naming and copying the 340 KB of an 80,000-token chat take 1 to
3 ms, tokenising them 70.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from router.clock import Clock
from router.config.schema import TokensConfig as Settings
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Chat, Text, UnknownIds
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.local_tokenizer import LocalTokenizer, SegmentedPrompt
from router.prompt.tokenization.offload import TokenizerThreads
from router.prompt.tokenization.prefix import Prefix
from router.prompt.tokenization.prefix_cache import CachedSegment, Name, PrefixCache, piece_of

RENDERED_ON_LOOP_BYTES = 500_000  # of the body: 2 to 5 ms

T = TypeVar("T")


class KeyInputs(NamedTuple):
    """What keys are made of besides ids."""

    model: str
    adapter: str | None
    salt: str | None
    block_sizes: frozenset[int]


class _Task(NamedTuple):
    """A prompt, and when it has to be done."""

    local: LocalTokenizer
    source: Chat | Text
    chain: KeyInputs
    spell: bool
    begun_s: float

    @property
    def root(self) -> bytes:
        """All that decides about ids and keys but the text. `repr` says different things differently, and no NUL."""
        source = self.source
        cut = isinstance(source, Chat) and source.has_media
        return repr((*self.chain[:3], source.add_special_tokens, cut, self.spell)).encode() + b"\0"


class _Read(NamedTuple):
    parts: SegmentedPrompt
    names: list[Name]


class _Made(NamedTuple):
    known: TokenizedPrompt
    new: list[CachedSegment]


def _leave(made: object) -> None:
    """Nothing is kept of it."""


class IncrementalTokenizer:
    def __init__(
        self, settings: Settings, keyring: Keyring, memo: PrefixCache, threads: TokenizerThreads, clock: Clock
    ) -> None:
        self._settings = settings
        self._keyring = keyring
        self._memo = memo
        self._threads = threads
        self._clock = clock
        self.cached_tokens: Counter[str] = Counter()  # prompt tokens found, by model
        self.encoded_tokens: Counter[str] = Counter()  # and those that were not

    async def tokenize(
        self, local: LocalTokenizer, source: Chat | Text, chain: KeyInputs, body_bytes: int, *, remember: bool = True
    ) -> TokenizedPrompt | UnknownIds:
        spell = self._settings.token_id_passthrough == "auto" and isinstance(source, Chat)
        task = _Task(local, source, chain, spell, self._clock.now())
        in_thread = body_bytes > max(RENDERED_ON_LOOP_BYTES, self._settings.inline_chars)
        read = await self._run(partial(self._read, task), task, in_thread)
        if isinstance(read, UnknownIds):
            return read
        found = self._memo.find(read.names)
        line = Prefix(self._keyring, self._keyring.root(*chain[:3]), chain.block_sizes)
        for piece in (piece_of(read.parts.head, spell=spell), *found):
            line.add(piece)
        new = read.parts.segments[len(found) :]
        work = partial(self._made, task, line, new, read.parts.tail)
        keep = partial(self._keep, task, read.names, found) if remember else _leave
        made = await self._run(work, task, sum(map(len, new)) > self._settings.inline_chars, keep)
        return made if isinstance(made, UnknownIds) else made.known

    async def _run(
        self, work: Callable[[], T], task: _Task, in_thread: bool, done: Callable[[T], None] = _leave
    ) -> T | UnknownIds:
        if in_thread:
            left_s = self._settings.budget_ms / 1000 - (self._clock.now() - task.begun_s)
            return await self._threads.run(work, left_s, done)
        made = work()
        done(made)
        return made

    def _read(self, task: _Task) -> _Read | UnknownIds:
        try:
            text = task.local.text(task.source)
        except UnrenderableChat:
            return UnknownIds("template_refused")
        parts = task.local.segment(text, task.source)
        return _Read(parts, self._memo.name_segments(task.root, parts.segments))

    def _made(self, task: _Task, line: Prefix, new: list[bytes], tail: list[int]) -> _Made:
        """`new`: what follows on `line`, and is nobody else's yet. Piece by piece, since only while it tokenises does
        a thread leave the interpreter to the event loop.
        """
        pieces, keys_s = [], 0.0
        for text in new:
            pieces.append(piece_of(task.local.encode_segment(text, task.source), spell=task.spell))
            made_s = self._clock.now()
            line.add(pieces[-1])
            keys_s += self._clock.now() - made_s
        line.add(piece_of(tail, spell=task.spell))
        known = TokenizedPrompt(
            ids=line.ids,
            complete=not (isinstance(task.source, Chat) and task.source.has_media),
            source="local",
            keys=line.keys,
            tokens_ms=(self._clock.now() - task.begun_s - keys_s) * 1000,
            keys_ms=keys_s * 1000,
            json_ids=tuple(line.json_ids),
        )
        return _Made(known, pieces)

    def _keep(self, task: _Task, names: list[Name], found: list[CachedSegment], made: _Made) -> None:
        self._memo.store(names, [*found, *made.new])
        self.cached_tokens[task.chain.model] += sum(len(piece.ids) for piece in found)
        self.encoded_tokens[task.chain.model] += sum(len(piece.ids) for piece in made.new)
