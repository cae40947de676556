"""The progress of sessions: the number of answers of each session, when its last answer ended, and whether that
answer ended in a tool call.

An agent that has called a tool sends its next request as soon as the tool returns; any other answer is first read
by a person. Policies that retain a session's cache, or room for it, need to distinguish the two cases.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

Key = tuple[str, str]  # (model, session)


class Progress(NamedTuple):
    """The number of answers of a session, and facts about the last one."""

    turn: int
    answered_s: float  # when the last answer ended, by the router's clock
    tool_call: bool | None  # whether the last answer ended in a tool call; None: unknown


class SessionProgress:
    """Progress of up to `size` sessions; the session whose last answer is oldest is forgotten first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._sessions: OrderedDict[Key, Progress] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def items(self) -> list[tuple[Key, Progress]]:
        """Return all entries, the session whose last answer is oldest first."""
        return list(self._sessions.items())

    def get(self, key: Key) -> Progress | None:
        """Return the progress of a session; None before the first answer, or if the session was forgotten."""
        return self._sessions.get(key)

    def on_answer(self, key: Key, now_s: float, tool_call: bool | None) -> None:
        """Count an answer that has ended."""
        before = self._sessions.get(key)
        self.put(key, Progress(1 if before is None else before.turn + 1, now_s, tool_call))

    def put(self, key: Key, progress: Progress) -> None:
        """Set the progress of a session."""
        self._sessions[key] = progress
        self._sessions.move_to_end(key)
        if len(self._sessions) > self.size:
            self._sessions.popitem(last=False)
