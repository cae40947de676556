"""The desk: where requests get their target. It holds the policy in force and what deciding needs from history.

That is the number of the request, whose turn it is, the seed, and where each session went last. All of it goes into
the view, so a decision can be replayed from its record. `decide` changes none of it: only what was really chosen
(`picked`) does, so that asking "what would happen now" leaves no trace. Prefill halves of pairs have a history of their
own: they go to other targets. A policy that breaks is stood in for by the fallback, and the fault is counted: a
scorer's bug may cost cache hits, never requests.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

from router.decide.policy import Part, Policy, PolicyFault, fallback
from router.decide.record import Decision
from scorers.contract import Needs, Outcome, Scorer, View

log = logging.getLogger("warmroute.decide")


class Sessions:
    """Where each session went last: bounded, the one that was longest away is forgotten first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._targets: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def last(self, model: str, session: str | None) -> str | None:
        return None if session is None else self._targets.get(_digest(model, session))

    def went(self, model: str, session: str | None, target: str) -> None:
        if session is None:
            return
        key = _digest(model, session)
        self._targets.pop(key, None)
        self._targets[key] = target
        if len(self._targets) > self.size:
            del self._targets[next(iter(self._targets))]


class _History:
    """What was chosen so far."""

    def __init__(self, sessions: int) -> None:
        self.sessions = Sessions(sessions)
        self.turns: Counter[tuple[str, str | None]] = Counter()  # as many keys as the fleet serves models


class Desk:
    """Decides by the policy in force. `seed` is what chance hangs on, `sessions` how many are remembered."""

    def __init__(self, policy: Policy, *, seed: int, sessions: int = 100_000) -> None:
        self.seed = seed
        self.faults: Counter[tuple[str, str]] = Counter()  # by (policy, plug-in), in decisions and in lessons
        self.fallbacks = 0  # decisions that the fallback had to make
        self._policy = policy
        self._fallback = fallback()
        self._numbers = 0
        answers = _History(sessions)
        self._histories: dict[Part, _History] = {
            "whole": answers,
            "decode": answers,
            "prefill": _History(sessions),
        }

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def needs(self) -> Needs:
        """What the policy in force reads: the rest need not be found out."""
        return self._policy.needs

    def swap(self, policy: Policy) -> None:
        """From now on `policy` decides. It takes over the sessions: their caches are where they went."""
        self._policy = policy

    def next_number(self) -> int:
        """The number of a new request, for its view; a retry keeps it."""
        number = self._numbers
        self._numbers += 1
        return number

    def decide(self, view: View, part: Part = "whole") -> Decision:
        """The choice for a view with at least one row; `seed`, `turn` and `last_target` are filled in here."""
        history = self._histories[part]
        view = view._replace(
            seed=self.seed,
            turn=history.turns[view.model, view.adapter],
            last_target=history.sessions.last(view.model, view.session),
        )
        try:
            return self._policy.part(part).decide(view)
        except PolicyFault as fault:
            self._count(fault)
            self.fallbacks += 1
            return self._fallback.decide(view)

    def picked(self, decision: Decision, part: Part = "whole") -> None:
        """The request goes where `decision` says: call it once, when it is booked."""
        view, row = decision.view, decision.view.rows[decision.chosen]
        history = self._histories[part]
        history.turns[view.model, view.adapter] += 1
        history.sessions.went(view.model, view.session, row.target)
        self._teach(decision, lambda scorer: scorer.picked(view, row))

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """That request has ended: call it once for every `picked`, also after a swap."""
        view, row = decision.view, decision.view.rows[decision.chosen]
        self._teach(decision, lambda scorer: scorer.finished(view, row, outcome))

    def _teach(self, decision: Decision, lesson: Callable[[Scorer], None]) -> None:
        for scorer in decision.learners:
            try:
                lesson(scorer)
            except Exception as failure:  # noqa: BLE001  a plug-in may raise anything; the request must not notice
                fault = PolicyFault(decision.policy, type(scorer).__name__, f"{type(failure).__name__}: {failure}")
                fault.__cause__ = failure
                self._count(fault)

    def _count(self, fault: PolicyFault) -> None:
        """Logs the 1st, 2nd, 4th, 8th, ... fault of a plug-in: a broken one breaks at every request."""
        self.faults[fault.policy, fault.plugin] += 1
        times = self.faults[fault.policy, fault.plugin]
        if times & (times - 1) == 0:
            log.error("%s (%d times so far)", fault, times, exc_info=fault.__cause__)


def _digest(model: str, session: str) -> bytes:
    """Sessions are named by clients, at any length: 16 bytes each is all that they may cost."""
    return blake2b(f"{model}\0{session}".encode(errors="surrogatepass"), digest_size=16).digest()
