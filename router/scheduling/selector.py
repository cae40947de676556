"""The desk: where requests get their target. It holds the regime in force and what deciding needs from history.

That is the number of the request, whose turn it is, the seed, and where each session went last, whichever arm sent it
there: its cache is there. All of it goes into the view, so a decision can be replayed from its record. `decide` changes
none of it: only what was really chosen (`picked`) does, so that asking "what would happen now" leaves no trace. Prefill
halves of pairs have a history of their own: they go to other targets. A policy that breaks is stood in for by the
fallback, and the fault is counted: a scorer's bug may cost cache hits, never requests.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.shadow import Shadow
from router.scheduling.policy.decision import Decision, Part, ShadowChoice
from router.scheduling.policy.policy import Policy, PolicyFault, fallback_policy
from router.scheduling.policy.session_memory import SessionMemory
from scorers.contract import Needs, Outcome, Scorer, View

log = logging.getLogger("warmroute.decide")


class DecisionHistory(NamedTuple):
    """What a view gets from the desk."""

    seed: int
    turn: int
    last_target: str | None


class Selector:
    """Decides by the regime in force. `seed` is what chance hangs on, `sessions` how many are remembered."""

    def __init__(self, regime: PolicySet, *, seed: int, sessions: int = 100_000) -> None:
        self.seed = seed
        self.faults: Counter[tuple[str, str]] = Counter()  # by (policy, plug-in), in decisions and in lessons
        self.fallbacks = 0  # decisions that the fallback had to make
        self.shadows: list[Shadow] = []
        self._fallback = fallback_policy()
        self.request_count = 0  # given so far
        self.sessions = SessionMemory(sessions)
        self._turns: Counter[tuple[bool, str, str | None]] = Counter()  # few keys: of models that the fleet serves
        self.swap(regime)

    @property
    def needs(self) -> Needs:
        """What the policies in force read: the rest need not be found out."""
        return self.policy_set.needs

    def swap(self, regime: PolicySet) -> None:
        """From now on `regime` decides. It takes over the sessions: their caches are where they went. A shadow that
        stays goes on with what it has seen.
        """
        self.policy_set = regime
        here = {(shadow.policy.name, shadow.policy.digest): shadow for shadow in self.shadows}
        names = [] if regime.experiment is None else regime.experiment.shadows
        policies = [regime.policies[name] for name in names]
        self.shadows = [here.get((policy.name, policy.digest)) or Shadow(policy) for policy in policies]

    def next_number(self) -> int:
        """The number of a new request, for its view; a retry keeps it."""
        number = self.request_count
        self.request_count += 1
        return number

    def history(self, model: str, adapter: str | None, session: str | None, part: Part = "whole") -> DecisionHistory:
        """For a view of this model, adapter and session."""
        turn = self._turns[part == "prefill", model, adapter]
        return DecisionHistory(self.seed, turn, self.sessions.last_target_of(model, session, part))

    def decide(self, view: View, policy: Policy, part: Part = "whole") -> Decision:
        """The choice for a view with at least one row; its history is filled in here."""
        return self.choose(self._with_history(view, part), policy, part)

    def choose(self, view: View, policy: Policy, part: Part = "whole") -> Decision:
        """The choice for a view with at least one row, and with its `history`."""
        try:
            return policy.decide(view, part)
        except PolicyFault as fault:
            self._count(fault)
            self.fallbacks += 1
            return self._fallback.decide(view)._replace(part=part)

    def explain(self, view: View, policy: Policy) -> Decision:
        """As `decide`, and nothing counts."""
        view = self._with_history(view, "whole")
        try:
            return policy.decide(view)
        except PolicyFault:
            return self._fallback.decide(view)

    def _with_history(self, view: View, part: Part) -> View:
        return view._replace(**self.history(view.model, view.adapter, view.session, part)._asdict())

    def picked(self, decision: Decision) -> None:
        """The request goes where `decision` says: call it once, when it is booked."""
        view, part = decision.view, decision.part
        self._turns[part == "prefill", view.model, view.adapter] += 1
        self.sessions.record(view, part, decision.target)
        if decision.learners:
            self._teach(decision, lambda scorer: scorer.picked(decision.seen, decision.row))

    def evaluate_shadows(self, made: Decision) -> list[ShadowChoice]:
        """What each shadow would have done instead. Off the request's path: call it when the answer is out."""
        looked = [shadow.evaluate(made) for shadow in self.shadows]
        return [shadow for shadow in looked if shadow is not None]

    def finished(self, decision: Decision, outcome: Outcome) -> None:
        """That request has ended: call it once for every `picked`, also after a swap."""
        self._teach(decision, lambda scorer: scorer.finished(decision.seen, decision.row, outcome))

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
