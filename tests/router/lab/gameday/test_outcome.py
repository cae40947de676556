"""The figures of a fault, worked out by hand, and the bounds that they break."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from router.config.sections.gameday import GamedayBounds
from router.lab.gameday.outcome import FaultOutcome, Look, PlayedFault, judge, judge_calm, list_broken
from router.lab.gameday.reading import MetricsReading
from router.lab.loadgen.load import SentRequest

WELL = MetricsReading()
DOWN = MetricsReading(not_ready=frozenset({"engine-0"}))
NOTHING = GamedayBounds()


def row(end_s: float, ttft_s: float | None = 0.05, *, cached: int = 60, failure: str | None = None) -> SentRequest:
    """A request of 100 prompt tokens that took half a second and ended then."""
    sizes: dict[str, Any] = {} if failure else {"ttft_s": ttft_s, "prompt_tokens": 100, "cached_tokens": cached}
    return SentRequest(
        session=0, turn=0, sent_s=end_s - 0.5, late_s=0.0, duration_s=0.5, planned_tokens=100, planned_output_tokens=8,
        failure=failure, **sizes,
    )  # fmt: skip


def looks(until_s: float, ill: tuple[float, float] = (0.0, 0.0)) -> list[Look]:
    """A look every half second; within `ill` an instance is not ready."""
    times = [n / 2 for n in range(int(until_s * 2))]
    return [Look(at_s, DOWN if ill[0] <= at_s < ill[1] else WELL) for at_s in times]


def played(fault: str = "kill", began_s: float = 10.0, ended_s: float = 10.0, **bounds: float) -> PlayedFault:
    return PlayedFault(fault, "engine-0", began_s, ended_s, GamedayBounds.model_validate(bounds), 8)  # type: ignore[arg-type]


CALM = judge_calm([row(n / 4) for n in range(20, 40)], 5.0, 10.0, NOTHING)


def test_the_calm() -> None:
    rows = [row(4.9), *(row(5 + n / 100, (n + 1) / 1000) for n in range(100)), row(10.0, failure="late")]
    calm = judge_calm(rows, 5.0, 10.0, GamedayBounds(failed=0, hit_share=0.7))
    assert (calm.requests, calm.failed, calm.hit_share) == (100, 0, 0.6)
    assert calm.p50_s == pytest.approx(0.05, abs=0.001)
    assert calm.p99_s == pytest.approx(0.1, abs=0.0011)
    assert (calm.notice_s, calm.recover_s) == (None, None)
    assert calm.broken == ("hit_share",)


def test_what_a_tenant_may_not_send_has_not_failed() -> None:
    limited = row(10.5, failure='{"error":{}}')
    limited = msgspec.structs.replace(limited, status=429)
    own = judge(played(), 20.0, [limited, row(11)], looks(20), CALM)
    assert (own.requests, own.failed, own.recover_s) == (2, 0, 0.0)


def test_a_killed_engine() -> None:
    rows = [row(10 + n / 2) for n in range(20)] + [row(10.2, failure="broke"), row(12.3, failure="broke")]
    own = judge(played(failed=1, notice_s=1, recover_s=3), 20.0, rows, looks(20, ill=(10.5, 12.0)), CALM)
    assert (own.requests, own.failed) == (22, 2)
    assert own.notice_s == pytest.approx(0.5)
    assert own.recover_s == pytest.approx(2.3)  # the last failure; the metrics were well at 12.0 s
    assert own.broken == ("failed",)


def test_recovery_counts_from_the_end_of_the_fault() -> None:
    own = judge(played("freeze", 10.0, 15.0), 20.0, [row(18.0)], looks(20, ill=(11.0, 16.5)), CALM)
    assert (own.notice_s, own.recover_s) == (pytest.approx(1.0), pytest.approx(1.0))  # last seen ill at 16.0 s


def test_a_slow_second_is_not_recovered() -> None:
    # the calm has 50 ms: more than 2 x 50 + 100 ms is slow, as the median of its second
    rows = [row(10.5), row(11.2, 0.3), row(11.4, 0.3), row(11.6, 0.05), row(12.5, 0.19), row(13.2)]
    assert judge(played(), 20.0, rows, looks(20), CALM).recover_s == pytest.approx(1.6)
    assert judge(played(), 20.0, rows[:1], looks(20), CALM).recover_s == 0.0


def test_what_is_ill_until_the_end_has_not_recovered() -> None:
    own = judge(played(recover_s=5), 20.0, [row(12.0)], looks(20, ill=(10.0, 20.0)), CALM)
    assert own.recover_s is None
    assert own.broken == ("recover_s",)
    silent = [Look(one.at_s, one.reading if one.at_s < 12 else None) for one in looks(20)]
    assert judge(played(), 20.0, [row(12.0)], silent, CALM).recover_s is None


def test_what_happens_after_the_next_fault_is_the_next_ones() -> None:
    rows = [row(12.0), row(20.5, failure="broke")]
    assert judge(played(), 20.0, rows, looks(30, ill=(20.0, 25.0)), CALM).broken == ()
    assert judge(played(), 20.0, rows, looks(30, ill=(20.0, 25.0)), CALM).failed == 0


def test_a_fault_without_a_sign_is_not_noticed_and_does_not_have_to_be() -> None:
    own = judge(played("flood", 10.0, 12.0), 20.0, [row(12.0)], looks(20), CALM)
    assert (own.notice_s, own.recover_s, own.broken) == (None, 0.0, ())


def test_without_metrics_the_answers_alone_tell_of_recovery() -> None:
    own = judge(played("flood", 10.0, 12.0), 20.0, [row(12.0), row(13.5, failure="x"), row(16.0)], [], CALM)
    assert own.recover_s == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["failed", "p99_s", "longest_s", "notice_s", "recover_s", "hit_share"])
def test_each_bound_holds_at_its_value_and_not_beyond(name: str) -> None:
    outcome = FaultOutcome("kill", "", 0, 0, 9, 2, 0.1, 2.0, 2.0, 0.5, 2.0, 2.0, ())
    holds, broken = (2, 1) if name != "hit_share" else (0.5, 0.6)
    assert list_broken(outcome, GamedayBounds.model_validate({name: holds})) == []
    assert list_broken(outcome, GamedayBounds.model_validate({name: broken})) == [name]
    if name != "failed":
        assert list_broken(outcome._replace(**{name: None}), GamedayBounds.model_validate({name: holds})) == [name]
