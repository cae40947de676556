"""When an engine has room: the arithmetic of one target."""

from __future__ import annotations

import pytest

from scorers.admission.contract import TargetLoad
from scorers.admission.engine_room import REPORT_S, wait_for_room


def a_load(**changed: object) -> TargetLoad:
    return TargetLoad("a/0", 0, 0.0, 20.0, 0, 1000, 0)._replace(**changed)


@pytest.mark.parametrize(
    ("changed", "wait_s"),
    [
        ({}, 0.0),
        ({"prefilling": 1, "left_ms": 50.0}, 0.03),  # 20 of them are how long the next prompt takes to get there
        ({"prefilling": 1, "left_ms": 20.0, "waiting": 3}, 0.0),
        ({"prefilling": 2, "left_ms": 20.0, "waiting": 1}, REPORT_S),
        ({"prefilling": 9, "left_ms": 20.0}, 0.0),  # short prompts, which it takes up together
        ({"prefilling": 1, "left_ms": 0.0, "waiting": 1}, REPORT_S),  # it should have begun long ago
        ({"prefilling": 1, "left_ms": 0.0, "waiting": None}, REPORT_S),
        ({"prefilling": 1, "left_ms": 0.0}, 0.0),
        ({"prefilling": 2, "left_ms": 0.0}, REPORT_S),  # slower than was learned
        ({"live_tokens": 900}, 0.0),
        ({"live_tokens": 901}, REPORT_S),
        ({"live_tokens": 950, "freed_per_s": 100.0}, 0.5),
        ({"live_tokens": 901, "capacity_tokens": None}, 0.0),
        ({"others_wait": True}, REPORT_S),
    ],
)
def test_one_target(changed: dict[str, object], wait_s: float) -> None:
    assert wait_for_room(a_load(**changed), 100) == pytest.approx(wait_s)


def test_a_prompt_larger_than_the_memory_begins_on_an_empty_engine() -> None:
    assert wait_for_room(a_load(), 5000) == 0
