"""A workload laid out in time before it is served: all requests of all sessions in the order of their times.

An open loop has its own times. A closed one waits for answers, so a time is assumed for those: `at_once` concurrent
sessions, `token_s` per output token, then the pause; the next session begins when one ends. That gives the order of
requests at caches, and the times of a trace; how a fleet serves such a load takes a simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple

from router.testbed.workloads.model import Session, Span, Workload, session_contexts


class TimedRequest(NamedTuple):
    """One request. `context` is its prompt with the part of the answer that an engine caches."""

    at_s: float
    prompt: list[Span]
    context: list[Span]
    output_tokens: int


class ClosedLoopPace(NamedTuple):
    """Assumptions about a closed loop."""

    at_once: int = 64  # concurrent sessions
    token_s: float = 0.02  # per output token: 50 a second


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
        (sent.at_s, session.number, sent, rest)
        for session in islice(waiting, pace.at_once)
        for rest in [_turns(session, session.start_s, pace)]
        for sent in [next(rest)]
    ]
    heapify(working)
    while working:
        at_s, number, sent, rest = working[0]
        yield sent
        following = next(rest, None)
        if following is None and (begun := next(waiting, None)) is not None:
            ended_s = at_s + pace.token_s * sent.output_tokens
            number, rest = begun.number, _turns(begun, max(ended_s, begun.start_s), pace)
            following = next(rest)
        if following is None:
            heappop(working)
        else:
            heapreplace(working, (following.at_s, number, following, rest))


def _turns(session: Session, start_s: float, pace: ClosedLoopPace) -> Iterator[TimedRequest]:
    at_s = start_s
    for turn, (prompt, context) in zip(session.turns, session_contexts(session), strict=True):
        at_s += turn.think_s
        yield TimedRequest(at_s, prompt, context, turn.output_tokens)
        at_s += pace.token_s * turn.output_tokens
