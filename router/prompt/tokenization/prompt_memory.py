"""Remembers the latest prompts of chats, so that only the new part of a next turn is read, encoded and named.

A prompt is found by digests of its beginnings, one for each 8 KB of its messages: the longest known beginning wins,
so a turn finds the turn before it, and a chat that was cut short, branched or edited finds the part it has in
common. A digest may collide, so the finder compares the bytes. Owners (model, adapter, salt) never share a prompt,
so timing tells one tenant nothing about another's.

    80,000 tokens: 320 KB of JSON, 320 KB of messages, 320 KB of text

This is as much again as their ids and keys take in the prefix cache. So the memory may take a quarter of the budget
that it shares with that cache; the least recently used prompt is dropped.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from sys import getsizeof

from xxhash import xxh3_64

from router.kvcache.memory_budget import MemoryBudget
from router.prompt.known_prompt import KnownPrompt, NamedText, ReadMessages

STEP_BYTES = 8 * 1024
SHARE = 4  # of the budget: 1 / SHARE
PROMPT_BYTES = 2_000  # objects, and the places in the two dicts
DIGEST_BYTES = 150  # the number, and its place in a list and in a dict
MESSAGE_BYTES = 400  # places in lists, the message's end, and its dict as the template takes it
CHUNK_BYTES = 60
SEGMENT_BYTES = 600  # name, hash and end


class PromptMemory:
    """The memory. `find` may be called by any thread, everything else by the event loop's."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._limit_bytes = budget.limit_bytes // SHARE
        self._seed = secrets.randbits(64)
        self._prompts: OrderedDict[int, KnownPrompt] = OrderedDict()  # by `id`, least recently used first
        self._found: dict[int, KnownPrompt] = {}  # by digest; the latest of several prompts
        self.held_bytes = 0

    def __len__(self) -> int:
        """Number of remembered prompts."""
        return len(self._prompts)

    def find(self, owner: bytes, raw: bytes) -> ReadMessages:
        """Return `raw`, an array of messages, with the remembered prompt that has the longest common beginning."""
        digest = xxh3_64(owner, self._seed)
        view = memoryview(raw)
        digests: list[int] = []
        for begin in range(0, len(raw) - STEP_BYTES + 1, STEP_BYTES):
            digest.update(view[begin : begin + STEP_BYTES])
            digests.append(digest.intdigest())
        for one in reversed(digests):
            known = self._found.get(one)
            if known is not None and known.owner == owner:
                return ReadMessages(raw, digests, known)
        return ReadMessages(raw, digests, None)

    def store(self, owner: bytes, read: ReadMessages, text: NamedText) -> None:
        """Remember a prompt, replacing the prompt that it continues."""
        old = read.known
        if old is not None and len(old.ends) <= len(read.ends) and old.ends[-1] == read.ends[len(old.ends) - 1]:
            self._drop(old)
        prompt = KnownPrompt(owner, read, text, measure(read, text))
        if prompt.memory_bytes > self._limit_bytes:
            return
        while self.held_bytes + prompt.memory_bytes > self._limit_bytes:
            self._drop(next(iter(self._prompts.values())))
        self._prompts[id(prompt)] = prompt
        for digest in prompt.digests:
            self._found[digest] = prompt
        self.held_bytes += prompt.memory_bytes
        self._budget.take(prompt.memory_bytes)

    def _drop(self, prompt: KnownPrompt) -> None:
        if self._prompts.pop(id(prompt), None) is None:
            return
        for digest in prompt.digests:
            if self._found.get(digest) is prompt:
                del self._found[digest]
        self.held_bytes -= prompt.memory_bytes
        self._budget.give(prompt.memory_bytes)


def measure(read: ReadMessages, text: NamedText) -> int:
    """Return an estimate of the memory that a prompt takes. Memory that two prompts share is counted twice."""
    printed = sum([getsizeof(chunk) for chunk in text.chunks]) + CHUNK_BYTES * len(text.chunks)
    parts = MESSAGE_BYTES * len(read.messages) + DIGEST_BYTES * len(read.digests) + SEGMENT_BYTES * len(text.names)
    return PROMPT_BYTES + len(read.raw) + read.sizes[-1] + printed + parts
