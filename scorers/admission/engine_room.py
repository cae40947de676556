"""Which engines would begin with one more prompt at once: what fair shares wait for, without a constant.

An engine computes prompts one after the other, so what is sent to it earlier than it can begin only waits there, where
nobody can overtake it any more. What is sent too late leaves it idle. In between: a target has room when what it still
has to prefill takes no longer than a new prompt needs to get there (`TargetLoad.refill_ms`, learned). Its memory must
hold the prompt beside those that run and their answers, and no other client's requests may wait there.

Estimates err. A target without a prefill always has room. One whose work should be done, and is not, is slower than was
learned, or memory keeps it from beginning: it gets one more prompt, and none where its engine reports that requests
wait, or reports nothing.
"""

from __future__ import annotations

from math import inf

from scorers.admission.contract import FleetMemory, TargetLoad

REPORT_S = 0.25  # engines report about so often; what they report changes without any event


class EngineRoom:
    """`due_s`: when `find` may return another answer although nothing happens before."""

    def __init__(self) -> None:
        self.due_s = inf

    def find(self, prompt_tokens: int, fleet: FleetMemory, now: float) -> bool:
        """Return whether there is room for such a prompt beside the requests that are on their way to engines. A fleet
        without targets has room: whoever comes is told that there are none.
        """
        taken, ready_s, some = fleet.unplaced, now + REPORT_S, False
        for load in fleet.loads:
            some = True
            if has_room(load, prompt_tokens):
                if not taken:
                    self.due_s = inf
                    return True
                taken -= 1
            else:
                ready_s = min(ready_s, _ready_s(load, now))
        self.due_s = ready_s if some else inf
        return not some

    def list_targets(self, fleet: FleetMemory, now: float) -> frozenset[str] | None:
        """Return the targets that have room for a short prompt; None where no target is known."""
        found, ready_s, some = [], now + REPORT_S, False
        for load in fleet.loads:
            some = True
            if has_room(load, 0):
                found.append(load.target)
            else:
                ready_s = min(ready_s, _ready_s(load, now))
        self.due_s = ready_s if some else inf
        return frozenset(found) if some else None


def _ready_s(load: TargetLoad, now: float) -> float:
    """Return when its prefill work will be done so far that it has room, inf where something else stands against it."""
    return now + (load.left_ms - load.refill_ms) / 1e3 if load.left_ms > load.refill_ms else inf


def has_room(load: TargetLoad, prompt_tokens: int) -> bool:
    """Return whether the target would begin with such a prompt at once."""
    if load.others_wait:
        return False
    if load.live_tokens and load.live_tokens + prompt_tokens > (load.capacity_tokens or inf):
        return False
    if load.prefilling == 0:
        return True
    if load.left_ms > load.refill_ms:
        return False
    if load.left_ms > 0:
        return load.prefilling < 2 or load.waiting == 0
    return load.prefilling < 2 and load.waiting == 0
