"""Requests of an open loop as columns: a sequence of one-turn sessions, each created when it is read.

A million requests as objects would take half a gigabyte; as columns they take 50 MB, and iteration creates one
session at a time. The sequence compares, pickles, slices and counts as a tuple of the same sessions would.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import isclose
from typing import NamedTuple, overload

from router.lab.workloads.model import Session, Span, Turn, Workload


class OpenArrivals(Sequence[Session]):
    """A sequence of sessions of one turn. Sessions with the same number are requests of one conversation."""

    __slots__ = ("_ends", "_numbers", "_output_tokens", "_sources", "_start_s", "_tokens")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._start_s = array("d")
        self._output_tokens = array("i")
        self._ends = array("q")  # per request: index after its last span
        self._sources = array("Q")  # per span of all requests
        self._tokens = array("i")

    @classmethod
    def of(cls, sessions: Iterable[Session]) -> OpenArrivals:
        """Return the sessions as columns. Raises ValueError for a session with more than one turn or with
        sub-agents.
        """
        arrivals = cls()
        for session in sessions:
            if len(session.turns) != 1:
                raise ValueError(f"session {session.number} has {len(session.turns)} turns: an open loop has one each")
            if session.sub_agents:
                raise ValueError(f"session {session.number} has sub-agents: an open loop waits for nobody")
            arrivals.add(session.start_s, session.turns[0].fresh, session.turns[0].output_tokens, session.number)
        return arrivals

    def add(self, start_s: float, prompt: Iterable[Span], output_tokens: int, number: int | None = None) -> None:
        """Append a session. `number` None: the session's index is its number."""
        self._numbers.append(len(self) if number is None else number)
        for source, tokens in prompt:
            self._sources.append(source)
            self._tokens.append(tokens)
        self._start_s.append(start_s)
        self._output_tokens.append(output_tokens)
        self._ends.append(len(self._tokens))

    def in_order(self) -> OpenArrivals:
        """Return the sessions sorted by `start_s`; those with equal times stay in their order."""
        start_s = self._start_s
        if all(start_s[row] <= start_s[row + 1] for row in range(len(start_s) - 1)):
            return self
        return OpenArrivals.of(map(self._session, sorted(range(len(start_s)), key=start_s.__getitem__)))

    def since(self, from_s: float) -> OpenArrivals:
        """Return the same sessions with times counted from `from_s`."""
        return OpenArrivals.of(session._replace(start_s=session.start_s - from_s) for session in self)

    def _session(self, row: int) -> Session:
        begin, end = self._ends[row - 1] if row else 0, self._ends[row]
        prompt = tuple(map(Span, self._sources[begin:end], self._tokens[begin:end]))
        return Session(self._numbers[row], self._start_s[row], (Turn(0, prompt, self._output_tokens[row], 0.0),))

    def __len__(self) -> int:
        return len(self._start_s)

    def __iter__(self) -> Iterator[Session]:
        return map(self._session, range(len(self)))

    @overload
    def __getitem__(self, at: int) -> Session: ...
    @overload
    def __getitem__(self, at: slice) -> OpenArrivals: ...
    def __getitem__(self, at: int | slice) -> Session | OpenArrivals:
        rows = range(len(self))[at]
        return self._session(rows) if isinstance(rows, int) else OpenArrivals.of(map(self._session, rows))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpenArrivals):
            return NotImplemented
        return all(getattr(self, column) == getattr(other, column) for column in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable


def speed_up(workload: Workload, factor: float) -> Workload:
    """Return the same requests `factor` times as fast. Raises ValueError for a closed loop, paced by answers."""
    _demand_open(workload)
    moved = (session._replace(start_s=session.start_s / factor) for session in workload.sessions)
    return workload._replace(sessions=OpenArrivals.of(moved))


class RatePhase(NamedTuple):
    """One phase of a varying rate: `factor` times the mean rate for `lasts_s`."""

    lasts_s: float
    factor: float


def vary_rate(workload: Workload, phases: Sequence[RatePhase]) -> Workload:
    """Return the same requests with a rate that repeats `phases`; the mean rate is unchanged.

    A gap in a phase of factor f becomes 1 / f times as long; the mean of the factors over time must be 1. Raises
    ValueError if it is not, for a factor or time that is not above 0, and for a closed loop.
    """
    _demand_open(workload)
    period_s = sum(phase.lasts_s for phase in phases)
    if not phases or min(min(phase) for phase in phases) <= 0:
        raise ValueError("phases: each must have a time and a factor above 0")
    if not isclose(sum(phase.lasts_s * phase.factor for phase in phases), period_s):
        raise ValueError("phases: the mean of their factors over the time must be 1")
    begins_s = [0.0, *accumulate(phase.lasts_s for phase in phases)]
    covers_s = [0.0, *accumulate(phase.lasts_s * phase.factor for phase in phases)]  # in the workload's own time

    def moved_s(at_s: float) -> float:
        whole, rest_s = divmod(at_s, period_s)
        number = min(bisect(covers_s, rest_s), len(phases)) - 1
        return whole * period_s + begins_s[number] + (rest_s - covers_s[number]) / phases[number].factor

    moved = (session._replace(start_s=moved_s(session.start_s)) for session in workload.sessions)
    return workload._replace(sessions=OpenArrivals.of(moved))


def take_window(workload: Workload, from_s: float, until_s: float) -> Workload:
    """Return the requests in [from_s, until_s), with times counted from `from_s`. Raises ValueError for a closed
    loop.
    """
    _demand_open(workload)
    inside = OpenArrivals.of(session for session in workload.sessions if from_s <= session.start_s < until_s)
    return workload._replace(sessions=inside.since(from_s))


def take_first(workload: Workload, requests: int) -> Workload:
    """Return the first `requests` requests. Raises ValueError for a closed loop."""
    _demand_open(workload)
    return workload._replace(sessions=workload.sessions[:requests])


def _demand_open(workload: Workload) -> None:
    if workload.is_closed:
        raise ValueError(f"{workload.name} is a closed loop: its requests have no times of their own")
