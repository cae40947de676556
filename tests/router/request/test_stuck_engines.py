"""A busy engine is never taken for a stuck one, and is one soon after it has stopped: minutes in virtual time.

`python -m tests.router.request.engine_hours 8` is the long form.
"""

from __future__ import annotations

from tests.router.request.engine_hours import EngineHours


def test_a_busy_engine_is_not_stuck_until_it_stops() -> None:
    made = EngineHours(seed=1, freeze_at_s=240.0)
    made.run(240.0)
    assert made.alarms == []
    assert made.requests > 100
    assert made.longest_tokens > 90_000
    made.run(60.0)
    at_s, stall = made.alarms[0]
    assert stall.kind == "silent"
    assert 243.0 < at_s < 300.0, "later than 3 s only by what waited"
