"""The clients of a workload in virtual time: when each request is sent, and what follows its answer.

    open loop     a session begins at its `start_s`, independent of the others
    closed loop   a fixed number at once: the next begins when one ends, and a refused request is sent again

In both, a session's next turn is sent a pause after the answer, and after the end of the sub-agents that began with
it. Clients know nothing of what happens between a request and its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from router.lab.rng import Rng
from router.lab.simulator.event_queue import EventQueue
from router.lab.workloads.block_names import SessionContext
from router.lab.workloads.model import Session

AGAIN_S = 1.0  # until a refused request is sent again


class ClientTurn(NamedTuple):
    """A turn as its client sends it."""

    session: Session
    number: int  # of the turn in its session
    context: SessionContext  # of the session, up to this turn and its answer
    names: Sequence[int]  # of the full blocks of its prompt and its answer
    prompt_tokens: int
    started_by: Session | None  # the session whose sub-agent this one is

    @property
    def output_tokens(self) -> int:
        return self.session.turns[self.number].output_tokens

    @property
    def tool_call(self) -> bool | None:
        """True if its answer ends in a tool call; None: unknown."""
        return self.session.turns[self.number].tool_call


class _Waiting:
    """A session's turn whose sub-agents are at work."""

    __slots__ = ("at_work", "turn")

    def __init__(self, turn: ClientTurn, at_work: int) -> None:
        self.turn = turn
        self.at_work = at_work


class SimulatedClients:
    """Sends each turn through `send`; the caller reports its end by `on_end`. From `until_s` on nothing is sent."""

    def __init__(
        self,
        sessions: Sequence[Session],
        block_tokens: int,
        event_queue: EventQueue,
        send: Callable[[ClientTurn], None],
        until_s: float,
    ) -> None:
        self._sessions = iter(sessions)
        self._block_tokens = block_tokens
        self._event_queue = event_queue
        self._send = send
        self._until_s = until_s
        self._is_closed = False
        self.at_work = 0  # sessions that have not ended; 0: no more requests come
        self._waiting: dict[int, _Waiting] = {}  # by the number of a sub-agent at work

    def begin(self, at_once: int | None, staggered: bool, rng: Rng) -> None:
        """Start a closed loop of `at_once` sessions (`staggered`: at a random turn), or an open loop if None."""
        if at_once is None:
            self._await_next()
            return
        self._is_closed = True
        for session in islice(self._sessions, at_once):
            self.at_work += 1
            self._start(session, rng.below(len(session.turns)) if staggered else 0)

    def on_end(self, turn: ClientTurn, ok: bool) -> None:
        """Continue the session after `turn`; `ok` False means that it was refused or failed."""
        if not ok and self._is_closed:
            self._event_queue.at(self._event_queue.now_s + AGAIN_S, self._send_or_stop, turn)
            return
        sub_agents = turn.session.started_by(turn.number)
        waiting = _Waiting(turn, len(sub_agents))
        for session in sub_agents:
            self.at_work += 1
            self._waiting[session.number] = waiting
            self._start(session, 0, turn.session)
        if not sub_agents:
            self._continue(turn)

    def _continue(self, turn: ClientTurn) -> None:
        """Schedule the session's turn after `turn`, if it has one."""
        session, following = turn.session, turn.number + 1
        if following < len(session.turns):
            at_s = self._event_queue.now_s + session.turns[following].think_s
            self._event_queue.at(at_s, self._turn, session, following, turn.context, turn.started_by)
        else:
            self._end(session)

    def _end(self, session: Session) -> None:
        """End a session. The turn that waited for it continues, or the next session of a closed loop begins."""
        waiting = self._waiting.pop(session.number, None)
        if waiting is not None:
            self.at_work -= 1
            waiting.at_work -= 1
            if not waiting.at_work:
                self._continue(waiting.turn)
        elif self._is_closed and (another := next(self._sessions, None)) is not None:
            self._start(another, 0)
        else:
            self.at_work -= 1

    def _await_next(self) -> None:
        """Schedule the next session of an open loop."""
        session = next(self._sessions, None)
        if session is not None and session.start_s < self._until_s:
            self.at_work += 1
            self._event_queue.at(max(session.start_s, self._event_queue.now_s), self._open, session)

    def _open(self, session: Session) -> None:
        self._await_next()
        self._start(session, 0)

    def _start(self, session: Session, first: int, started_by: Session | None = None) -> None:
        context = SessionContext(self._block_tokens)
        for number in range(first):  # turns before the simulation began
            context.append_turn(session, number)
        at_s = self._event_queue.now_s + session.turns[first].think_s
        self._event_queue.at(at_s, self._turn, session, first, context, started_by)

    def _turn(self, session: Session, number: int, context: SessionContext, started_by: Session | None) -> None:
        prompt_tokens = context.append_turn(session, number)
        # The session keeps changing its names, so a request has its own copy.
        self._send_or_stop(ClientTurn(session, number, context, context.names[:], prompt_tokens, started_by))

    def _send_or_stop(self, turn: ClientTurn) -> None:
        if self._event_queue.now_s < self._until_s:
            self._send(turn)
        else:
            self._stop(turn.session)

    def _stop(self, session: Session) -> None:
        """End a session before its last turn, and each session that waits for this one alone."""
        self.at_work -= 1
        waiting = self._waiting.pop(session.number, None)
        if waiting is not None:
            waiting.at_work -= 1
            if not waiting.at_work:
                self._stop(waiting.turn.session)
