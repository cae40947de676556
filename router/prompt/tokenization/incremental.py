"""Tokenises a prompt incrementally: render, segment, look the segments up, tokenise only the new ones.

    render, segment, name (a hash per segment) -> prefix cache -> copy hits, tokenise the rest -> prefix cache

`prepare` does the first three steps, `tokenize` the rest: at once on the event loop if the new part is short, else
in a thread. Rendering, naming and copying the 340 KB of an 80,000-token chat take 1 to 3 ms, tokenising them 70 ms.
"""

from __future__ import annotations

from array import array
from collections import Counter
from functools import partial
from typing import NamedTuple

from router.clock import Clock
from router.config.schema import TokensConfig as Settings
from router.kvcache.block_keys import Keyring
from router.kvcache.tokenized_prompt import PrefixEnd, TokenizedPrompt
from router.prompt.known_prompt import NamedText
from router.prompt.prompt import Chat, Text, UnknownIds
from router.prompt.tokenization.chat_template import UnrenderableChat
from router.prompt.tokenization.history import Rendered, find_prefix_end, find_turn_before, measure_added
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.prompt.tokenization.message_renderer import SegmentedPrompt
from router.prompt.tokenization.named_text import continue_text, drop_segments, encode_rest, name_rest
from router.prompt.tokenization.prefix_cache import CachedSegment, Name, Prefix, PrefixCache, make_segment
from router.prompt.tokenization.segments import LEAST_BYTES
from router.prompt.tokenization.threads import Abandonment, TokenizerThreads, discard

MAX_SEGMENT_BYTES = 2 * 1024 * 1024  # longer ones would be late, cannot be stopped, and take 330 times their size


class KeyInputs(NamedTuple):
    """Inputs of block keys besides token ids."""

    model: str
    adapter: str | None
    salt: str | None
    block_sizes: frozenset[int]


class PreparedPrompt(NamedTuple):
    """A rendered prompt in named segments. Its time budget began at `begun_s`."""

    local: LocalTokenizer
    source: Chat | Text
    chain: KeyInputs
    spell: bool
    begun_s: float
    parts: SegmentedPrompt  # without the segments that are `known`
    names: list[Name]  # of all segments
    known: list[CachedSegment]  # the first segments
    text: NamedText | None = None  # to be remembered
    special_text: bool = True  # as in `TokenizedPrompt`


class _Result(NamedTuple):
    known: TokenizedPrompt | UnknownIds  # unknown: the caller stopped waiting before all of `new` was ready
    new: list[CachedSegment]


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

    def prepare(
        self, local: LocalTokenizer, source: Chat | Text, chain: KeyInputs, text_limit_bytes: int, begun_s: float
    ) -> PreparedPrompt | UnknownIds:
        """Return the prompt ready to be tokenised, or why it cannot be. `text_limit_bytes`: the longest text that
        is accepted. May run in any thread.
        """
        source = local.adapt(source)
        spell = self._settings.token_id_passthrough == "auto" and isinstance(source, Chat)
        try:
            if isinstance(source, Chat) and source.read is not None and (size := local.delimiter_bytes) is not None:
                known = None if source.read.known is None else source.read.known.text
                named = continue_text(local.render_chunks(source), _root(source, chain, spell), known, size)
                if named.chunk_ends and named.chunk_ends[-1] > text_limit_bytes:
                    return UnknownIds("too_long")
                prompt = PreparedPrompt(local, source, chain, spell, begun_s, SegmentedPrompt([], [], []), [], [])
                return self._prepare_rest(prompt, named)
            parts = local.segment(source)
        except (UnrenderableChat, RecursionError):
            return UnknownIds("template_refused")
        if sum(map(len, parts.segments)) > text_limit_bytes:
            return UnknownIds("too_long")
        names = self._prefix_cache.name_segments(_root(source, chain, spell), parts.segments)
        return PreparedPrompt(local, source, chain, spell, begun_s, parts, names, [])

    def _prepare_rest(self, prompt: PreparedPrompt, text: NamedText) -> PreparedPrompt:
        """Add the segments of `text`, whose first segments may be cached."""
        known = self._prefix_cache.find(text.names)
        drop_segments(text, len(known))
        parts = prompt.local.segment_text(encode_rest(text), prompt.source)
        names = name_rest(text, parts.segments, self._prefix_cache.begin_hash)
        return prompt._replace(parts=parts, names=names, known=known, text=text)

    async def tokenize(
        self, prompt: PreparedPrompt, *, remember: bool = True, client: str = ""
    ) -> TokenizedPrompt | UnknownIds:
        """Return ids and keys, within the time budget. Without `remember`, nothing is stored or counted."""
        chain = prompt.chain
        known = len(prompt.known)
        found = [*prompt.known, *self._prefix_cache.find(prompt.names[known:])]
        prefix = Prefix(self._keyring, self._keyring.root(*chain[:3]), chain.block_sizes)
        prefix.add(make_segment(prompt.parts.head, spell=prompt.spell))
        prefix.add_cached(found)
        new = prompt.parts.segments[len(found) - known :]
        new_bytes = sum(map(len, new))
        store = partial(self._store, prompt, found) if remember else discard
        if new_bytes <= self._settings.inline_chars:
            result = self._encode(prompt, prefix, new, None)
            store(result)
            return result.known
        if new_bytes > MAX_SEGMENT_BYTES and max(map(len, new)) > MAX_SEGMENT_BYTES:
            return UnknownIds("too_long")
        abandonment = Abandonment()
        work = partial(self._encode, prompt, prefix, new, abandonment)
        left_s = self._settings.budget_ms / 1000 - (self._clock.now() - prompt.begun_s)
        made = await self._threads.run(work, left_s, new_bytes, store, abandonment, client=client)
        return made if isinstance(made, UnknownIds) else made.known

    def _encode(
        self, prompt: PreparedPrompt, prefix: Prefix, new: list[bytes], abandonment: Abandonment | None
    ) -> _Result:
        """Tokenise the `new` segments onto `prefix`, which no other job uses. This is done segment by segment,
        because a thread releases the interpreter to the event loop only while it tokenises. `abandonment` is None
        on the event loop.
        """
        segments: list[CachedSegment] = []
        keys_s = 0.0
        for text in new:
            if abandonment is not None and abandonment.requested:
                return _Result(UnknownIds("tokens_late"), segments)
            try:
                ids = prompt.local.encode_segment(text, prompt.source)
            except UnrenderableChat:
                return _Result(UnknownIds("template_refused"), segments)
            segments.append(make_segment(ids, spell=prompt.spell))
            tokenised_s = self._clock.now()
            prefix.add(segments[-1])
            keys_s += self._clock.now() - tokenised_s
        prefix.add(make_segment(prompt.parts.tail, spell=prompt.spell))
        end = None if abandonment is None else self._find_end(prompt, prefix.ids, sum(map(len, new)))
        tokens = TokenizedPrompt(
            ids=prefix.ids,
            complete=not (isinstance(prompt.source, Chat) and prompt.source.has_media),
            source="local",
            keys=prefix.keys,
            tokens_ms=(self._clock.now() - prompt.begun_s - keys_s) * 1000,
            keys_ms=keys_s * 1000,
            json_ids=tuple(prefix.json_ids),
            special_text=prompt.special_text,
            prefix_end=end,
        )
        return _Result(tokens, segments)

    def _find_end(self, prompt: PreparedPrompt, ids: array[int], new_bytes: int) -> PrefixEnd | None:
        """Return where a chat stops repeating its turn before, if more of it is new than the client has added."""
        chat, chain = prompt.source, prompt.chain
        if not isinstance(chat, Chat) or (turn := find_turn_before(chat)) is None:
            return None
        try:
            if new_bytes <= 2 * LEAST_BYTES + measure_added(chat, turn):
                return None
            parts = prompt.local.segment(turn)
            names = self._prefix_cache.name_segments(_root(turn, chain, prompt.spell), parts.segments)
            before = Rendered(turn, parts, self._prefix_cache.find(names))
            return find_prefix_end(prompt.local, chat, ids, before, min(chain.block_sizes, default=1))
        except (UnrenderableChat, RecursionError):
            return None

    def _store(self, prompt: PreparedPrompt, found: list[CachedSegment], result: _Result) -> None:
        segments = [*found, *result.new]
        self._prefix_cache.store(prompt.names[: len(segments)], segments)
        self.cached_tokens[prompt.chain.model] += sum(len(segment.ids) for segment in found)
        self.encoded_tokens[prompt.chain.model] += sum(len(segment.ids) for segment in result.new)


def _root(source: Chat | Text, chain: KeyInputs, spell: bool) -> bytes:
    """Return the identity of all that determines ids and keys except the text. `repr` is unambiguous and has no
    NUL.
    """
    cut = isinstance(source, Chat) and source.has_media
    return repr((*chain[:3], source.add_special_tokens, cut, spell)).encode() + b"\0"
