"""Workloads: sessions of turns, with prompts made of spans.

A workload holds no text and no tokens, only names for them: a `Span` is so many tokens of a numbered source, and
`make_token_ids` makes the same ids of it every time. Prompts share a prefix exactly where their spans do. So one
workload can be counted (`statistics.py`), simulated, and sent to real engines (`router/testbed/loadgen`), as a closed
loop (the next turn waits for the answer and a pause) or an open one (sessions of one turn, each at its `start_s`).

    prompt of a turn = the first `context_tokens` of the session's context + `fresh`
    context after it = prompt + answer
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import shake_128
from typing import NamedTuple


class Span(NamedTuple):
    """The first `tokens` tokens of a source, which is an endless text. Sources of answers are negative."""

    source: int
    tokens: int


class Turn(NamedTuple):
    """One request, sent `think_s` after the answer before it (or the session's start)."""

    context_tokens: int
    fresh: tuple[Span, ...]
    output_tokens: int
    think_s: float

    @property
    def prompt_tokens(self) -> int:
        return self.context_tokens + sum(span.tokens for span in self.fresh)


class Session(NamedTuple):
    number: int
    start_s: float
    turns: tuple[Turn, ...]

    def answer(self, turn: int) -> Span:
        """Return the answer to turn `turn`. Answers of a workload all differ: a session has fewer than 2^20 turns."""
        return Span(-1 - (self.number << 20 | turn), self.turns[turn].output_tokens)


class Workload(NamedTuple):
    """Sessions in a tuple, or in a sequence that behaves as one: see `OpenArrivals`."""

    name: str
    seed: int
    sessions: Sequence[Session]
    is_closed: bool = True  # False: sessions of one turn, in the order of `start_s`, which do not wait for answers

    @property
    def turns(self) -> int:
        """Number of requests of all sessions."""
        return sum(len(session.turns) for session in self.sessions) if self.is_closed else len(self.sessions)


def make_token_ids(span: Span, seed: int, vocabulary: range) -> list[int]:
    """Return the span's token ids within the vocabulary; another seed gives another text of the same shape.

    A longer span of the same source begins with a shorter one's ids. SHAKE-128 is a stream of uniform bytes that a
    name alone determines, at memory speed.
    """
    name = seed.to_bytes(16, "big", signed=True) + span.source.to_bytes(8, "big")
    words = array("I", shake_128(name).digest(4 * span.tokens))
    low, size = vocabulary.start, len(vocabulary)
    return [low + word % size for word in words]


def session_contexts(session: Session) -> list[tuple[list[Span], list[Span]]]:
    """Return per turn the prompt as spans, and the prompt with its answer as an engine caches it.

    The last token of an answer is never run through the model, so no engine has its KV.
    """
    seen: list[tuple[list[Span], list[Span]]] = []
    context: list[Span] = []
    for number, turn in enumerate(session.turns):
        prompt = take_tokens(context, turn.context_tokens) + list(turn.fresh)
        answer = session.answer(number)
        context = [*prompt, answer]
        seen.append((prompt, [*prompt, Span(answer.source, answer.tokens - 1)]))
    return seen


def take_tokens(spans: Sequence[Span], tokens: int) -> list[Span]:
    """Return the leading spans that hold `tokens` tokens, the last one shortened."""
    taken: list[Span] = []
    for span in spans:
        if tokens <= 0:
            break
        taken.append(Span(span.source, min(span.tokens, tokens)))
        tokens -= span.tokens
    return taken
