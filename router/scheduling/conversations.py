"""Identifies the conversation of a request without a session name, by the request's longest known prefix of turns.

The current turn of a conversation is the one of its latest request. A request that continues from the current turn
belongs to the conversation and advances it. A request that only repeats a turn (a retry, or another answer to the
same question) belongs to the conversation, too. If a request continues from an earlier turn, the conversation forks
and a new one begins. So chats with the same beginning (such as one example in front of every chat) are
distinguished as soon as they differ, and are one conversation until then.

The name of a conversation is the digest of its shortest prefix that does not name another conversation, mostly of
its first turn; the name of a fork is the digest of the first turn that only the fork has. So other processes, and
this process after a restart, mostly give a conversation the same name. Apart from that, each process has its own
table; the least recently used turn is forgotten first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UNSET
from xxhash import xxh3_128_digest

from router.kvcache.events import TargetId
from router.prompt.api.conversation_id import read_turns
from router.prompt.prompt import Prompt

TURNS_KEPT: Final = 16_384  # about 5 MB
HELD_FOR_S: Final = 600.0  # as `index.approximate_ttl_s` by default


class LastAnswer(NamedTuple):
    """The last answer of a conversation."""

    target: TargetId
    tokens: int  # of its prompt and the answer: these were in the target's cache then
    at_s: float


class Conversations:
    """The most recently used turns of conversations, at most `limit` turns."""

    def __init__(self, limit: int = TURNS_KEPT) -> None:
        self._limit: Final = limit
        self._names: dict[bytes, bytes] = {}  # of conversations by the digest of each turn, the least recent first
        self._stands: dict[bytes, bytes] = {}  # digest of the current turn, by a conversation's name
        self._answers: dict[bytes, LastAnswer] = {}  # by a conversation's name

    def __len__(self) -> int:
        """Return the number of turns that are kept."""
        return len(self._names)

    def identify(self, prompt: Prompt) -> bytes | None:
        """Return the name (16 bytes) of a request's conversation, and remember the request's turn; None if no
        conversation can be identified. The turns are read once per request.
        """
        if prompt.conversation is UNSET:
            turns = read_turns(prompt)
            prompt.conversation = self._take(turns) if turns else None
        return prompt.conversation

    def preview(self, prompt: Prompt) -> None:
        """Set the request's conversation to the one that `identify` would return, and remember nothing."""
        turns = read_turns(prompt)
        prompt.conversation = self._find(turns) if turns else None

    def on_answer(self, name: bytes, target: TargetId, tokens: int, now: float) -> None:
        """Record that `target` answered the conversation `name` and then held `tokens` of that conversation."""
        if name in self._stands:
            self._answers[name] = LastAnswer(target, tokens, now)

    def last_answer(self, prompt: Prompt, now: float) -> LastAnswer | None:
        """Return the last answer of the request's conversation; None if there was none in the last `HELD_FOR_S`."""
        name = self.identify(prompt)
        last = None if name is None else self._answers.get(name)
        return None if last is None or now - last.at_s > HELD_FOR_S else last

    def forget_answers(self, target: TargetId) -> None:
        """Forget the answers of `target`: it has lost its cache."""
        for name in [name for name, last in self._answers.items() if last.target == target]:
            del self._answers[name]

    def _find(self, turns: list[bytes]) -> bytes:
        """Return the name of the known conversation with these turns, or a new name."""
        known = next((i for i in range(len(turns) - 1, -1, -1) if turns[i] in self._names), -1)
        if known >= 0:
            name = self._names[turns[known]]
            if known == len(turns) - 1 or self._stands.get(name) == turns[known]:
                return name
        for turn in turns[known + 1 :]:
            if turn not in self._stands:
                return turn
        name = turns[-1]
        while name in self._stands:
            name = xxh3_128_digest(name)
        return name

    def _take(self, turns: list[bytes]) -> bytes:
        turn, repeated = turns[-1], turns[-1] in self._names
        name = self._find(turns)
        self._names.pop(turn, None)
        self._names[turn] = name  # the most recent one now
        if not repeated:
            self._stands[name] = turn
        if len(self._names) > self._limit:
            self._forget()
        return name

    def _forget(self) -> None:
        """Forget the least recently used turn, and its conversation if this is the conversation's current turn."""
        oldest = next(iter(self._names))
        name = self._names.pop(oldest)
        if self._stands.get(name) == oldest:
            del self._stands[name]
            self._answers.pop(name, None)
