"""Which conversation a request without a session name belongs to: the longest beginning of it that is known.

A conversation stands at the turn of its latest request. A request that goes on from there belongs to it and moves
it on; one that only repeats a turn belongs to it, too: a retry, or another answer to the same question. Where a
request goes on from an earlier turn, the conversation forks, and a new one begins. So chats that begin alike (the
same example in front of every chat) are told apart as soon as they differ, and are one as long as they do not.

A conversation is named by the digest of its shortest beginning that names no other one, mostly of its first turn;
one that forks off by that of its first turn of its own. So other processes, and this one after a restart, mostly
give it the same name. Beyond that each process has its own table; the turn that was not used for longest is
forgotten.
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
    tokens: int  # of its prompt and of the answer: what the target held then
    at_s: float


class Conversations:
    """The latest turns of conversations, at most `limit` of them."""

    def __init__(self, limit: int = TURNS_KEPT) -> None:
        self._limit: Final = limit
        self._names: dict[bytes, bytes] = {}  # of conversations by the digest of each turn, the least recent first
        self._stands: dict[bytes, bytes] = {}  # by a conversation's name: the digest of its latest turn
        self._answers: dict[bytes, LastAnswer] = {}  # by a conversation's name

    def __len__(self) -> int:
        """Return the number of turns that are kept."""
        return len(self._names)

    def identify(self, prompt: Prompt) -> bytes | None:
        """Return the name (16 bytes) of the conversation that a request belongs to, and remember its turn; None: it
        is in none that can be identified. Read once for each request.
        """
        if prompt.conversation is UNSET:
            turns = read_turns(prompt)
            prompt.conversation = self._take(turns) if turns else None
        return prompt.conversation

    def preview(self, prompt: Prompt) -> None:
        """Let the request belong to the conversation that `identify` would return, and remember nothing."""
        turns = read_turns(prompt)
        prompt.conversation = self._find(turns) if turns else None

    def on_answer(self, name: bytes, target: TargetId, tokens: int, now: float) -> None:
        """Record that `target` answered the conversation `name`, and held `tokens` of it then."""
        if name in self._stands:
            self._answers[name] = LastAnswer(target, tokens, now)

    def last_answer(self, prompt: Prompt, now: float) -> LastAnswer | None:
        """Return the last answer of the request's conversation; None: there was none in the last `HELD_FOR_S`."""
        name = self.identify(prompt)
        last = None if name is None else self._answers.get(name)
        return None if last is None or now - last.at_s > HELD_FOR_S else last

    def forget_answers(self, target: TargetId) -> None:
        """Forget the answers of `target`: it has lost its cache."""
        for name in [name for name, last in self._answers.items() if last.target == target]:
            del self._answers[name]

    def _find(self, turns: list[bytes]) -> bytes:
        """Return the name of the conversation with these turns, the known or a new one."""
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
        """Forget the turn that was not used for longest, and its conversation if that stands there."""
        oldest = next(iter(self._names))
        name = self._names.pop(oldest)
        if self._stands.get(name) == oldest:
            del self._stands[name]
            self._answers.pop(name, None)
