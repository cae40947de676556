"""Workloads: sessions of turns, with prompts made of spans, and their requests laid out in time.

A workload holds no text and no tokens, only names for them: a `Span` is a number of tokens of a numbered source,
which `make_token_ids` always turns into the same ids. Prompts share a prefix exactly where their spans do. So one
workload can be counted (`statistics.py`), simulated, and sent to real engines (`router/lab/loadgen`), as a closed
loop (the next turn waits for the answer and a pause) or an open one (sessions of one turn, each at its `start_s`).

    prompt of a turn = the first `context_tokens` of the session's context + `fresh`
    context after it = prompt + answer

A session may start sub-agents, which are sessions too: they begin together when an answer of the session is
complete, and the session's next turn waits until all have ended. A workload's sequence holds only sessions that no
other session starts.

`lay_out` yields all requests in the order of their times before they are served. An open loop has its own times. A
closed one waits for answers, so their times are assumed: `at_once` concurrent sessions, `token_s` per output token,
then the pause; the next session begins when one ends. These assumptions give the order of requests at caches, and
the times of a trace; only a simulation shows how a fleet serves such a load.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import shake_128
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple


class Span(NamedTuple):
    """The first `tokens` tokens of a source, which is an endless text. Sources of answers are negative."""

    source: int
    tokens: int


class Turn(NamedTuple):
    """One request, sent `think_s` after the previous answer (or the session's start)."""

    context_tokens: int
    fresh: tuple[Span, ...]
    output_tokens: int
    think_s: float
    tool_call: bool | None = None  # whether its answer ends in a tool call; None: unknown

    @property
    def prompt_tokens(self) -> int:
        return self.context_tokens + sum(span.tokens for span in self.fresh)


class Session(NamedTuple):
    """A chain of turns. Numbers are unique among all sessions of a workload, sub-agents included."""

    number: int
    start_s: float
    turns: tuple[Turn, ...]
    after_turn: int = 0  # sub-agents: the parent's turn with whose answer the session begins
    sub_agents: tuple[Session, ...] = ()

    def started_by(self, turn: int) -> tuple[Session, ...]:
        """Return the sub-agents that begin with the answer to turn `turn`."""
        return tuple(one for one in self.sub_agents if one.after_turn == turn)

    def family(self) -> Iterator[Session]:
        """Yield this session and all sessions that it starts, directly or indirectly."""
        yield self
        for one in self.sub_agents:
            yield from one.family()

    def answer(self, turn: int) -> Span:
        """Return the answer to turn `turn`. Answers of a workload all differ: a session has fewer than 2^20
        turns.
        """
        return Span(-1 - (self.number << 20 | turn), self.turns[turn].output_tokens)


class Workload(NamedTuple):
    """Sessions in a tuple, or in a sequence that behaves like a tuple: see `OpenArrivals`."""

    name: str
    seed: int
    sessions: Sequence[Session]
    is_closed: bool = True  # False: sessions of one turn, in the order of `start_s`, which do not wait for answers

    @property
    def turns(self) -> int:
        """Number of requests in all sessions."""
        return sum(len(one.turns) for one in self.all_sessions()) if self.is_closed else len(self.sessions)

    def all_sessions(self) -> Iterator[Session]:
        """Yield all sessions, each family in a row."""
        for session in self.sessions:
            yield from session.family()


def make_token_ids(span: Span, seed: int, vocabulary: range) -> list[int]:
    """Return the span's token ids within the vocabulary; another seed gives another text of the same shape.

    A longer span of a source begins with the ids of a shorter one. SHAKE-128 yields uniform bytes that depend only
    on a name, at memory speed.
    """
    name = seed.to_bytes(16, "big", signed=True) + span.source.to_bytes(8, "big")
    words = array("I", shake_128(name).digest(4 * span.tokens))
    low, size = vocabulary.start, len(vocabulary)
    return [low + word % size for word in words]


def session_contexts(session: Session) -> list[tuple[list[Span], list[Span]]]:
    """Return, per turn, the prompt as spans, and the prompt with the part of its answer that an engine caches.

    An answer's last token is never run through the model, so no engine has its KV.
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


class TimedRequest(NamedTuple):
    """One request. `context` is its prompt with the part of the answer that an engine caches."""

    at_s: float
    prompt: list[Span]
    context: list[Span]
    output_tokens: int


class ClosedLoopPace(NamedTuple):
    """Assumptions about a closed loop."""

    at_once: int = 64  # concurrent sessions
    token_s: float = 0.02  # per output token: 50 tokens per second


DEFAULT_PACE = ClosedLoopPace()


def lay_out(workload: Workload, pace: ClosedLoopPace = DEFAULT_PACE) -> Iterator[TimedRequest]:
    """Yield the requests in the order of their times."""
    if not workload.is_closed:
        for session in workload.sessions:
            (turn,) = session.turns
            ((prompt, context),) = session_contexts(session)
            yield TimedRequest(session.start_s, prompt, context, turn.output_tokens)
        return
    waiting = iter(workload.sessions)
    working = [
        (sent.at_s, session.number, sent, rest, end_s)
        for session in islice(waiting, pace.at_once)
        for rest, end_s in [_timeline(session, session.start_s, pace)]
        for sent in [next(rest)]
    ]
    heapify(working)
    while working:
        _, number, sent, rest, end_s = working[0]
        yield sent
        following = next(rest, None)
        if following is None and (begun := next(waiting, None)) is not None:
            number = begun.number
            rest, end_s = _timeline(begun, max(end_s, begun.start_s), pace)
            following = next(rest)
        if following is None:
            heappop(working)
        else:
            heapreplace(working, (following.at_s, number, following, rest, end_s))


def _timeline(session: Session, start_s: float, pace: ClosedLoopPace) -> tuple[Iterator[TimedRequest], float]:
    """Return the requests of a session and of all sessions that it starts, in the order of their times, and the
    time at which the last one ends.
    """
    requests: list[TimedRequest] = []
    end_s = _append_requests(requests, session, start_s, pace)
    if session.sub_agents:
        requests.sort(key=lambda request: request.at_s)
    return iter(requests), end_s


def _append_requests(requests: list[TimedRequest], session: Session, at_s: float, pace: ClosedLoopPace) -> float:
    """Append the requests of a session that begins at `at_s`, and of all sessions that it starts. Return the time
    at which the last one ends.
    """
    for number, (turn, (prompt, context)) in enumerate(zip(session.turns, session_contexts(session), strict=True)):
        at_s += turn.think_s
        requests.append(TimedRequest(at_s, prompt, context, turn.output_tokens))
        at_s += pace.token_s * turn.output_tokens
        at_s = max([at_s, *(_append_requests(requests, one, at_s, pace) for one in session.started_by(number))])
    return at_s
