"""The sessions that are live: how long their contexts are, all together, at any moment.

A session that has a request under way counts fully; one that is silent counts with the chance that it comes back
(`silence.py`), and is forgotten after `idle_s`. Everything is kept as sums per stage of silence, so a request costs the
same however many sessions there are.

Sessions that have come back before and those that never did are judged apart, each by its own kind's silences: a prompt
that is asked once, under a name that nobody uses again, must not pass for a conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import NamedTuple

from router.request.admission.return_probability import STAGES, ReturnProbability


class LiveSession:
    """`name` None: nobody will know it again, so it is live only while its request is."""

    __slots__ = (
        "context_tokens",
        "due_s",
        "name",
        "prompt_tokens",
        "returned",
        "running",
        "stage",
        "waiting",
    )

    def __init__(self, name: bytes | None) -> None:
        self.name = name
        self.prompt_tokens: int | None = None  # of its last answered turn; None: there was none yet
        self.context_tokens = 0  # the same with the answer, or the prompt that is under way; 0: it is gone
        self.running = 0  # requests under way
        self.waiting = 0  # at the door
        self.returned = False  # it has come back at least once
        self.stage = -1  # of its silence; -1: it is not silent
        self.due_s = inf  # when that stage ends


class SessionSums:
    """Of sessions that count alike. Whole numbers, so that what was added can be taken away exactly."""

    __slots__ = ("context_tokens", "sessions")

    def __init__(self) -> None:
        self.sessions = self.context_tokens = 0

    def add(self, session: LiveSession, sign: int = 1) -> None:
        self.sessions += sign
        self.context_tokens += sign * session.context_tokens


class ExpectedLoad(NamedTuple):
    """What the sessions come to, each with its chance to come back."""

    sessions: float
    context_tokens: float

    @property
    def mean_tokens(self) -> int:
        """The mean context; 0: there is none yet."""
        return round(self.context_tokens / self.sessions) if self.sessions else 0


class SilenceStage(OrderedDict[LiveSession, None]):
    """The silent sessions of one stage and kind, the one that entered first ahead: it leaves first, too."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = SessionSums()

    @property
    def first(self) -> LiveSession:
        return next(iter(self))


class LiveSessions:
    def __init__(self, idle_s: float) -> None:
        self._known: dict[bytes, LiveSession] = {}
        self._running = SessionSums()
        self._kinds = [(ReturnProbability(idle_s), [SilenceStage() for _ in range(STAGES)]) for _ in range(2)]
        self.next_s = inf  # when `age` has something to do, or a little before

    def __len__(self) -> int:
        """All that are remembered, however long they have been silent."""
        return len(self._known)

    def session(self, name: bytes | None) -> LiveSession:
        """The one of that name, or a new one."""
        if name is None:
            return LiveSession(None)
        return self._known.get(name) or self._known.setdefault(name, LiveSession(name))

    def known(self, name: bytes | None) -> LiveSession | None:
        return None if name is None else self._known.get(name)

    def expected(self) -> ExpectedLoad:
        running = self._running
        sessions, context = float(running.sessions), float(running.context_tokens)
        for silence, stages in self._kinds:
            for chance, stage in zip(silence.chances, stages, strict=True):
                if stage:
                    sessions += chance * stage.sums.sessions
                    context += chance * stage.sums.context_tokens
        return ExpectedLoad(sessions, context)

    # what happens to one

    def comes(self, session: LiveSession) -> None:
        """A request of it is here: it is silent no more, and does not count until that `begins`."""
        if session.stage >= 0:
            silence, stages = self._kinds[session.returned]
            silence.came_back(session.stage)
            _take(session, stages[session.stage])
            session.returned = True

    def begins(self, session: LiveSession, prompt_tokens: int) -> None:
        """A request of it is let in. `prompt_tokens` 0: unknown."""
        if session.running:
            self._running.add(session, -1)
            prompt_tokens = max(prompt_tokens, session.context_tokens)
        session.context_tokens = prompt_tokens or session.context_tokens
        session.running += 1
        self._running.add(session)

    def answered(self, session: LiveSession, prompt_tokens: int, context_tokens: int, now: float) -> None:
        """A request of it is over; with its answer it was `context_tokens` long."""
        self._running.add(session, -1)
        session.running -= 1
        session.prompt_tokens = prompt_tokens
        session.context_tokens = max(session.context_tokens, context_tokens) if session.running else context_tokens
        self._ended(session, now)

    def failed(self, session: LiveSession, context_tokens: int, now: float) -> None:
        """A request of it is over without an answer: it is again what it was before, or was never."""
        self._running.add(session, -1)
        session.running -= 1
        if not session.running:
            session.context_tokens = context_tokens
        self._ended(session, now)

    def rests(self, session: LiveSession, now: float) -> None:
        """Nobody asks anything for it any more, or only those who still run or wait do. One that never had an answer is
        forgotten at once: there is nothing to come back to.
        """
        if session.running or session.waiting or session.name is None:
            return
        if session.prompt_tokens is not None:
            self._enter(session, 0, now)
        else:
            del self._known[session.name]

    def age(self, now: float) -> None:
        """Time has passed. Nothing to do, as a rule."""
        if now < self.next_s:
            return
        self.next_s = inf
        for silence, stages in self._kinds:
            for number, stage in enumerate(stages):
                while stage and (first := stage.first).due_s <= now:
                    silence.went_on(number)
                    _take(first, stage)
                    if number + 1 < STAGES:
                        self._enter(first, number + 1, first.due_s)
                    elif first.name is not None:
                        del self._known[first.name]
                if stage:
                    self.next_s = min(self.next_s, stage.first.due_s)

    def _ended(self, session: LiveSession, now: float) -> None:
        if session.running:
            self._running.add(session)
        else:
            self.rests(session, now)

    def _enter(self, session: LiveSession, number: int, at_s: float) -> None:
        silence, stages = self._kinds[session.returned]
        stage = stages[number]
        session.stage, session.due_s = number, at_s + silence.lengths_s[number]
        stage[session] = None
        stage.sums.add(session)
        self.next_s = min(self.next_s, session.due_s)


def _take(session: LiveSession, stage: SilenceStage) -> None:
    del stage[session]
    stage.sums.add(session, -1)
    session.stage = -1
