"""When an engine would begin one more prompt at once: the condition for which fair shares wait, without a constant.

An engine computes prompts one after the other, so a prompt that is sent before the engine can begin it only waits
there, where no other request can overtake it any more. A prompt that is sent too late leaves the engine idle. In
between, a target has room when its remaining prefill takes no longer than a new prompt needs to get there
(`TargetLoad.refill_ms`, learned). The target's memory must hold the computed part of the prompt beside the running
requests and their answers, and no other client's requests may wait in its engine. The cached part of the prompt is
not counted: when memory is short, only the tokens that running requests use are still held.

Estimates err. Apart from memory and other clients' requests, a target without a prefill always has room. A target
whose work should be done, and is not, is slower than was learned, or memory keeps it from beginning: it gets one
more prompt, and none if its engine reports that requests wait, or reports nothing. The time at which such a target
will have room is unknown, so the router waits for its next report.
"""

from __future__ import annotations

from math import inf

from scorers.admission.contract import TargetLoad

REPORT_S = 0.25  # engines report about so often; reported values change without any event


def wait_for_room(load: TargetLoad, new_tokens: int) -> float:
    """Return the seconds until the target would begin at once with a prompt of which it computes `new_tokens`: 0 if
    it has room, `REPORT_S` if the time is unknown.
    """
    if load.others_wait:
        return REPORT_S
    short_tokens = load.live_tokens + new_tokens - (load.capacity_tokens or inf)
    if load.live_tokens and short_tokens > 0:
        return short_tokens / load.freed_per_s if load.freed_per_s else REPORT_S
    if load.left_ms > load.refill_ms:
        return (load.left_ms - load.refill_ms) / 1e3
    is_next = load.prefilling == 1 and load.waiting == 0
    on_time = load.left_ms > 0 and (load.prefilling == 1 or load.waiting == 0)
    return 0.0 if load.prefilling == 0 or is_next or on_time else REPORT_S
