"""When an engine would begin with one more prompt at once: what fair shares wait for, without a constant.

An engine computes prompts one after the other, so what is sent to it earlier than it can begin only waits there,
where nobody can overtake it any more. What is sent too late leaves it idle. In between: a target has room when what
it still has to prefill takes no longer than a new prompt needs to get there (`TargetLoad.refill_ms`, learned). Its
memory must hold what it computes of the prompt beside those that run and their answers, and no other client's
requests may wait there. What is held of a prompt is not counted: when memory is short, only what running requests
use is still held.

Estimates err. A target without a prefill always has room. One whose work should be done, and is not, is slower than
was learned, or memory keeps it from beginning: it gets one more prompt, and none where its engine reports that
requests wait, or reports nothing. When it will have room is not known then; its next report is waited for.
"""

from __future__ import annotations

from math import inf

from scorers.admission.contract import TargetLoad

REPORT_S = 0.25  # engines report about so often; what they report changes without any event


def wait_for_room(load: TargetLoad, new_tokens: int) -> float:
    """Return the seconds until the target would begin at once with a prompt of which it computes `new_tokens`: 0
    where it has room, `REPORT_S` where that cannot be told.
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
