"""What a workload is: sessions of turns, whose prompts are made of spans.

A workload holds no text and no tokens, only names for them: a `Span` is so many tokens of a numbered source, and
`make_token_ids` makes the same ids of it every time. Prompts share a prefix exactly where their spans do. So one
workload can be counted (`statistics.py`), simulated, and sent to real engines (`router/testbed/loadgen`), as a closed
loop (the next turn waits for the answer and a pause) or an open one (sessions of one turn, each at its `start_s`).

    prompt of a turn = the first `kept_tokens` of the session's context + `fresh`
    context after it = prompt + answer
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import shake_128
from typing import NamedTuple


class Span(NamedTuple):
    """The first `tokens` tokens of a source; one source is one endless text. Those of answers are negative."""

    source: int
    tokens: int


class Turn(NamedTuple):
    """One request. `think_s` passes between the answer before it (or the session's start) and this request."""

    kept_tokens: int
    fresh: tuple[Span, ...]
    output_tokens: int
    think_s: float

    @property
    def prompt_tokens(self) -> int:
        return self.kept_tokens + sum(span.tokens for span in self.fresh)


class Session(NamedTuple):
    number: int
    start_s: float
    turns: tuple[Turn, ...]

    def answer(self, turn: int) -> Span:
        """To that turn. No two answers of a workload are alike: a session has fewer than 2^20 turns."""
        return Span(-1 - (self.number << 20 | turn), self.turns[turn].output_tokens)


class Workload(NamedTuple):
    """A tuple of sessions, or what behaves as one: see `Arrivals`."""

    name: str
    seed: int
    sessions: Sequence[Session]
    is_closed: bool = True  # False: sessions of one turn, in the order of `start_s`, which wait for nobody

    @property
    def turns(self) -> int:
        return sum(len(session.turns) for session in self.sessions) if self.is_closed else len(self.sessions)


def make_token_ids(span: Span, seed: int, vocabulary: range) -> list[int]:
    """The span's ids within the vocabulary; another seed is another text of the same shape.

    A longer span of the same source begins with a shorter one's ids. SHAKE-128 is a stream of uniform bytes that a
    name alone determines, at memory speed.
    """
    name = seed.to_bytes(16, "big", signed=True) + span.source.to_bytes(8, "big")
    words = array("I", shake_128(name).digest(4 * span.tokens))
    low, size = vocabulary.start, len(vocabulary)
    return [low + word % size for word in words]
