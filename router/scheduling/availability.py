"""Determines before a choice whether a model can answer now, or an alias falls back.

    no_instance    no ready instance serves the model in the requested revision
    breakers_open  the circuit breakers of all these instances are open
    saturated      the queues of all these engines were at or above the alias's limit at the last poll

Two more reasons only show in an attempt: `busy` (the engines that were tried answered 503) and `unreachable` (no
engine was reached).
"""

from __future__ import annotations

from typing import Literal

from router.fleet.fleet import Fleet
from router.fleet.instance import InstanceState, Target

Unavailability = Literal["no_instance", "breakers_open", "saturated", "busy", "unreachable"]


def find_unavailability(
    fleet: Fleet, model: str, revision: str | None, most_waiting: int, now: float, sender: str | None = None
) -> Unavailability | None:
    """Return why no request for `model` should be sent now; None if an instance can take it. An engine with at
    least `most_waiting` requests in its queue is saturated; one that does not report its queue is not.
    """
    targets = [
        target
        for target in fleet.targets_serving(model)
        if target.instance.state is InstanceState.READY
        and target.can_answer
        and (revision is None or target.instance.config.revision == revision)
    ]
    if not targets:
        return "no_instance"
    allowed = [target for target in targets if target.breaker.allows(now, sender)]
    if not allowed:
        return "breakers_open"
    return "saturated" if all(_is_saturated(target, most_waiting) for target in allowed) else None


def _is_saturated(target: Target, most_waiting: int) -> bool:
    waiting = target.load_book.gauges.waiting
    return waiting is not None and waiting >= most_waiting
