"""The live sessions of a model, and the sum of their context lengths at any moment.

A session with a running request counts in full; a silent one counts with its probability to return
(`return_probability.py`) and is dropped after `idle_s`. Sums are kept per stage of silence, so a request costs the same
however many sessions there are. Of more than `MAX_SESSIONS` the one that has been silent for longest is dropped.

Sessions that have returned before and those that never did are estimated separately, each from the silences of its own
kind: a prompt that is sent once, under a name that is never used again, must not pass for a conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import NamedTuple

from router.request.admission.return_probability import STAGES, ReturnProbability

MAX_SESSIONS = 100_000  # of a model, about 400 bytes each


class LiveSession:
    """One session; with `name` `None` it cannot be recognised again, and is live only while its request runs."""

    __slots__ = ("context_tokens", "due_s", "name", "prompt_tokens", "returned", "running", "stage", "waiting")

    def __init__(self, name: bytes | None) -> None:
        self.name = name
        self.prompt_tokens: int | None = None  # of the last answered request; None: none was answered yet
        self.context_tokens = 0  # that prompt with its answer, or the running prompt; 0: its context is lost
        self.running = 0  # requests
        self.waiting = 0  # requests that wait for admission
        self.returned = False  # at least once
        self.stage = -1  # of its silence; -1: it is not silent
        self.due_s = inf  # when that stage ends


class SessionSums:
    """Sums over sessions that count alike, in whole numbers: what was added can be taken away exactly."""

    __slots__ = ("context_tokens", "sessions")

    def __init__(self) -> None:
        self.sessions = self.context_tokens = 0

    def add(self, session: LiveSession, sign: int = 1) -> None:
        self.sessions += sign
        self.context_tokens += sign * session.context_tokens


class ExpectedLoad(NamedTuple):
    """Sessions and context tokens, each session weighted by its probability to return."""

    sessions: float
    context_tokens: float

    @property
    def mean_tokens(self) -> int:
        """The mean context in tokens; 0 without sessions."""
        return round(self.context_tokens / self.sessions) if self.sessions else 0


class SilenceStage(OrderedDict[LiveSession, None]):
    """The silent sessions of one stage and kind, in the order in which they entered, and so leave."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = SessionSums()

    @property
    def first(self) -> LiveSession:
        return next(iter(self))


class LiveSessions:
    def __init__(self, idle_s: float) -> None:
        self._by_name: dict[bytes, LiveSession] = {}
        self._running = SessionSums()
        self._kinds = [(ReturnProbability(idle_s), [SilenceStage() for _ in range(STAGES)]) for _ in range(2)]
        self.next_s = inf  # when `advance` has something to do, or a little before

    def __len__(self) -> int:
        """Count all sessions, however long they have been silent."""
        return len(self._by_name)

    def get_or_create(self, name: bytes | None) -> LiveSession:
        """Return the session called `name`, or a new one."""
        if name is None:
            return LiveSession(None)
        if (session := self._by_name.get(name)) is None:
            session = self._by_name[name] = LiveSession(name)
            if len(self._by_name) > MAX_SESSIONS:
                self._drop_oldest()
        return session

    def find(self, name: bytes | None) -> LiveSession | None:
        return None if name is None else self._by_name.get(name)

    def expected_load(self) -> ExpectedLoad:
        running = self._running
        sessions, context = float(running.sessions), float(running.context_tokens)
        for probability, stages in self._kinds:
            for chance, stage in zip(probability.chances, stages, strict=True):
                if stage:
                    sessions += chance * stage.sums.sessions
                    context += chance * stage.sums.context_tokens
        return ExpectedLoad(sessions, context)

    # what happens to one session

    def on_arrival(self, session: LiveSession) -> None:
        """A request arrived: the session is no longer silent, and does not count until `on_start`."""
        if session.stage >= 0:
            probability, stages = self._kinds[session.returned]
            probability.add_return(session.stage)
            _remove(session, stages[session.stage])
            session.returned = True

    def on_start(self, session: LiveSession, prompt_tokens: int) -> None:
        """A request was admitted; `prompt_tokens` 0 when unknown."""
        if session.running:
            self._running.add(session, -1)
            prompt_tokens = max(prompt_tokens, session.context_tokens)
        session.context_tokens = prompt_tokens or session.context_tokens
        session.running += 1
        self._running.add(session)

    def on_answer(self, session: LiveSession, prompt_tokens: int, context_tokens: int, now: float) -> None:
        """A request was answered; with its answer it was `context_tokens` long."""
        self._running.add(session, -1)
        session.running -= 1
        session.prompt_tokens = prompt_tokens
        session.context_tokens = max(session.context_tokens, context_tokens) if session.running else context_tokens
        self._end(session, now)

    def on_failure(self, session: LiveSession, context_tokens: int, now: float) -> None:
        """A request ended without an answer; the context is `context_tokens` again, as before it."""
        self._running.add(session, -1)
        session.running -= 1
        if not session.running:
            session.context_tokens = context_tokens
        self._end(session, now)

    def on_idle(self, session: LiveSession, now: float) -> None:
        """Begin a silence, unless requests still run or wait. A session without any answer is dropped at once: there is
        nothing to come back to.
        """
        if session.running or session.waiting or session.name is None:
            return
        if session.prompt_tokens is not None:
            self._enter(session, 0, now)
        else:
            del self._by_name[session.name]

    def advance(self, now: float) -> None:
        """Move silent sessions on to their next stages; as a rule there is nothing to do."""
        if now < self.next_s:
            return
        self.next_s = inf
        for probability, stages in self._kinds:
            for number, stage in enumerate(stages):
                while stage and (first := stage.first).due_s <= now:
                    probability.add_survival(number)
                    _remove(first, stage)
                    if number + 1 < STAGES:
                        self._enter(first, number + 1, first.due_s)
                    elif first.name is not None:
                        del self._by_name[first.name]
                if stage:
                    self.next_s = min(self.next_s, stage.first.due_s)

    def _drop_oldest(self) -> None:
        """Drop a session of the latest stage of silence, the first that entered it; none if all have requests."""
        for number in reversed(range(STAGES)):
            for _, stages in self._kinds:
                if (stage := stages[number]) and (name := stage.first.name) is not None:
                    _remove(stage.first, stage)
                    del self._by_name[name]
                    return

    def _end(self, session: LiveSession, now: float) -> None:
        if session.running:
            self._running.add(session)
        else:
            self.on_idle(session, now)

    def _enter(self, session: LiveSession, number: int, at_s: float) -> None:
        probability, stages = self._kinds[session.returned]
        stage = stages[number]
        session.stage, session.due_s = number, at_s + probability.lengths_s[number]
        stage[session] = None
        stage.sums.add(session)
        self.next_s = min(self.next_s, session.due_s)


def _remove(session: LiveSession, stage: SilenceStage) -> None:
    del stage[session]
    stage.sums.add(session, -1)
    session.stage = -1
