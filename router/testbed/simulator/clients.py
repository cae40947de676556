"""The clients of a workload in virtual time: who sends what when, and what follows an answer.

    open loop     a session begins at its `start_s`, whatever became of the others
    closed loop   so many at once: the next begins when one ends, and who was turned away comes again with the same

In both a session's next turn comes a pause after the answer. What happens between a request's sending and its end is
not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from router.testbed.rng import Rng
from router.testbed.simulator.event_queue import EventQueue
from router.testbed.workloads import Session
from router.testbed.workloads.block_names import SessionContext

AGAIN_S = 1.0  # after which a client that was turned away comes again


class ClientTurn(NamedTuple):
    """A turn as its client sends it."""

    session: Session
    number: int  # of the turn
    context: SessionContext  # the session's so far, with this turn and its answer
    names: Sequence[int]  # of the full blocks of its prompt and its answer
    prompt_tokens: int

    @property
    def output_tokens(self) -> int:
        return self.session.turns[self.number].output_tokens


class SimulatedClients:
    """`send` gets every turn when it comes; `ended` is called once for each. From `until_s` on nothing is sent."""

    def __init__(
        self,
        sessions: Sequence[Session],
        block_tokens: int,
        moments: EventQueue,
        send: Callable[[ClientTurn], None],
        until_s: float,
    ) -> None:
        self._sessions = iter(sessions)
        self._block_tokens = block_tokens
        self._moments = moments
        self._send = send
        self._until_s = until_s
        self._is_closed = False
        self.at_work = 0  # sessions that are not over; 0: nothing more comes

    def begin(self, at_once: int | None, staggered: bool, chance: Rng) -> None:
        """A closed loop of so many sessions, of which the first begin anywhere in their course; None: an open loop."""
        if at_once is None:
            self._await_next()
            return
        self._is_closed = True
        for session in islice(self._sessions, at_once):
            self.at_work += 1
            self._start(session, chance.below(len(session.turns)) if staggered else 0)

    def ended(self, said: ClientTurn, ok: bool) -> None:
        session, following, now = said.session, said.number + 1, self._moments.now_s
        if not ok and self._is_closed:
            self._moments.at(now + AGAIN_S, self._sends, said)
        elif following < len(session.turns):
            self._moments.at(now + session.turns[following].think_s, self._turn, session, following, said.context)
        elif self._is_closed and (another := next(self._sessions, None)) is not None:
            self._start(another, 0)
        else:
            self.at_work -= 1

    def _await_next(self) -> None:
        """The next session of an open loop begins when its time has come."""
        session = next(self._sessions, None)
        if session is not None and session.start_s < self._until_s:
            self.at_work += 1
            self._moments.at(max(session.start_s, self._moments.now_s), self._open, session)

    def _open(self, session: Session) -> None:
        self._await_next()
        self._start(session, 0)

    def _start(self, session: Session, first: int) -> None:
        context = SessionContext(self._block_tokens)
        for number in range(first):  # what was said before the simulation began
            _say(context, session, number)
        self._moments.at(self._moments.now_s + session.turns[first].think_s, self._turn, session, first, context)

    def _turn(self, session: Session, number: int, context: SessionContext) -> None:
        prompt_tokens = _say(context, session, number)
        # The names are the session's, which goes on: what is sent has its own copy.
        self._sends(ClientTurn(session, number, context, context.names[:], prompt_tokens))

    def _sends(self, said: ClientTurn) -> None:
        if self._moments.now_s < self._until_s:
            self._send(said)
        else:
            self.at_work -= 1


def _say(context: SessionContext, session: Session, number: int) -> int:
    """A turn's prompt and answer are added to what was said. Returns the prompt's length in tokens."""
    turn = session.turns[number]
    context.truncate(turn.kept_tokens)
    for span in turn.fresh:
        context.add(span)
    prompt_tokens = context.tokens
    context.add(session.answer(number))
    return prompt_tokens
