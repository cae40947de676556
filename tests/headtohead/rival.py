"""A released router as the policy of a simulation: each prompt is sent to it as text, and it chooses among engines that
keep the request until the simulated one has answered, and publish what the simulated one stores and evicts. So it has
the same requests, the same requests in flight and the same events as our copy of its rule, which is examined in the
same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from router.errors import WarmrouteError
from router.kvcache.events import EventBatch
from router.lab.rng import Rng
from router.lab.simulator.router import SimulatedRouter, instance_name
from router.lab.workloads.block_names import SessionContext
from router.lab.workloads.model import Session
from router.scheduling.policy.policy import Policy
from router.scheduling.ticket import Ticket
from scorers.contract import Needs, Outcome, Row, Scorer, Unit, View
from tests.bench.routers import Running
from tests.headtohead.held_engines import Held, HeldEngines, write_chat


@dataclass
class Agreement:
    """How many choices were made, and how many of them the copy might have made as well: it prefers the same engine, or
    is indifferent between several of which that is one.
    """

    choices: int = 0
    same: int = 0


@dataclass(frozen=True)
class Rival(Scorer):
    """Costs 0 at the engine that the router chooses, and 1 elsewhere; of several routers that `start` returns `rng`
    draws one for each request. `sessions`: by the pseudonyms in views, each sent from its first turn on, one turn at a
    time. `copy`: a policy that takes the least cost, examined at each choice.
    """

    needs = Needs.CACHE | Needs.LOAD | Needs.SESSION
    unit = Unit.RAW

    start: Callable[[], Sequence[Running]]
    rng: Rng
    engines: HeldEngines
    sessions: Mapping[str, Session]
    block_tokens: int
    copy: Policy | None = None
    agreement: Agreement = field(default_factory=Agreement)
    _routers: list[Running] = field(default_factory=list)
    _contexts: dict[str, SessionContext] = field(default_factory=dict)
    _turns: Counter[str] = field(default_factory=Counter)  # sent, by session
    _held: dict[str, Held] = field(default_factory=dict)  # by session
    _failures: list[WarmrouteError | OSError] = field(default_factory=list)

    def score(self, view: View) -> Sequence[float]:
        assert view.session is not None
        body = self._body(view.session)
        with self._keeping_failures():
            router = self._routers[self.rng.below(len(self._routers))]
            self._held[view.session] = held = self.engines.send(router, body, view.session)
        chosen = next(row for row in view.rows if row.instance == instance_name(held.number))
        self.agreement.choices += 1
        if self.copy is not None:
            decision = self.copy.decide(view)
            costs = dict(zip((row.target for row in decision.rows), decision.costs, strict=True))
            self.agreement.same += costs.get(chosen.target) == min(costs.values())
        return [0.0 if row is chosen else 1.0 for row in view.rows]

    def check(self) -> None:
        """Raises WarmrouteError or OSError if the router failed: a scorer's error is logged, and another policy
        decides.
        """
        if self._failures:
            raise self._failures[0]

    @contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        try:
            yield
        except (WarmrouteError, OSError) as why:
            self._failures.append(why)
            raise

    def restart(self) -> None:
        """Start new routers for all requests to come; those before finish what they have."""
        self._routers[:] = self.start()

    def begin(self, view: View) -> None:
        """Let the router see the first token of the request of this view."""
        assert view.session is not None
        self.engines.begin(self._held[view.session])

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        assert view.session is not None
        with self._keeping_failures():
            self.engines.release(self._held.pop(view.session))

    def _body(self, session: str) -> bytes:
        """Return the chat of the session's next turn: one message, which is the whole context."""
        turn = self._turns[session]
        self._turns[session] += 1
        context = self._contexts.setdefault(session, SessionContext(self.block_tokens))
        sent = self.sessions[session]
        prompt_tokens = context.append_turn(sent, turn)
        names = context.names[: prompt_tokens // self.block_tokens]
        return write_chat(names, sent.answer(turn).tokens)


class RivalRouter(SimulatedRouter):
    """A simulated router with a rival's choices, which shows the rival what engines do. A new one starts the rival
    anew.
    """

    def __init__(self, rival: Rival, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rival = rival
        rival.restart()

    def on_events(self, number: int, batch: EventBatch) -> int | None:
        self._rival.check()
        self._rival.engines.publish(number, batch.events)
        return super().on_events(number, batch)

    def on_first_byte(self, ticket: Ticket) -> None:
        self._rival.check()
        self._rival.begin(ticket.attempt.decision.view)
        super().on_first_byte(ticket)
