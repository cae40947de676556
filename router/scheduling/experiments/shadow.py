"""A policy that only says what it would have done: it sees the views of others, books nothing and learns nothing.

It remembers where it would have sent a session, so that a policy that keeps sessions together is judged by its own
history. A shadow that breaks is out from then on: a broken one breaks at every request, and nobody is waiting for it.
"""

from __future__ import annotations

import logging

from router.scheduling.experiments.regret import RegretSummary
from router.scheduling.policy.decision import Decision, Part, ShadowChoice
from router.scheduling.policy.policy import Policy, PolicyFault
from router.scheduling.policy.session_memory import SessionMemory
from scorers.contract import View

log = logging.getLogger("warmroute.decide")

SESSIONS = 20_000


class ShadowPolicy:
    """Decides on views that others decided on, with a session memory of its own. Used by shadows, plans and replays.

    It remembers only sessions that it would have sent elsewhere than they went. Where both agree, what happened next
    (retries, say) happened to both.
    """

    def __init__(self, sessions: int = SESSIONS) -> None:
        self._sessions = SessionMemory(sessions)

    def decide(self, policy: Policy, view: View, part: Part, made: str) -> Decision:
        """`made`: the target that was chosen. Raises PolicyFault."""
        if (own := self._sessions.last_target(view, part)) is not None and own != view.last_target:
            view = view._replace(last_target=own)
        decision = policy.decide(view, part)
        if decision.target == made:
            self._sessions.forget(view, part)
        else:
            self._sessions.record(view, part, decision.target)
        return decision


class Shadow:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.regret = RegretSummary()
        self.fault: str | None = None  # why it is out; None: it is not
        self._follower = ShadowPolicy()

    def evaluate(self, made: Decision) -> ShadowChoice | None:
        """What it would have done instead; None: it is out."""
        if self.fault is not None:
            return None
        try:
            own = self._follower.decide(self.policy, made.view, made.part, made.target)
        except PolicyFault as fault:
            self.fault = str(fault)
            self.regret.failed += 1
            log.error("shadow %s is out: %s", self.policy.name, fault, exc_info=fault.__cause__)
            return None
        return ShadowChoice(self.policy.name, own.target, self.regret.add(made.view, made.row, own.row))
