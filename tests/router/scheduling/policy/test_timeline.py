"""Where the time of a request went: begins that follow from lengths, and the promise beside what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from router.config import schema
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from router.scheduling.policy.timeline import Promise, StageTime, build_timeline, compare_promise
from tests.suites.views import a_load, a_row, a_view, an_overlap

POLICY = build_policy("least", schema.PolicyConfig.model_validate({"scorers": [{"name": "least_work_left"}]}))
VIEW = a_view(
    a_row("a", an_overlap(320), a_load(queued_ms=3.0)), a_row("b", an_overlap(0), a_load(requests=1, queued_ms=900.0)),
    prompt_tokens=1000,
)  # fmt: skip


def an_attempt(start_ms: float | None, **known: Any) -> Attempt:
    return Attempt(POLICY.decide(VIEW), 320, 320, start_ms=start_ms, **known)


def a_record(*attempts: Attempt, stages: Stages | None = None, **known: Any) -> Record:
    given: dict[str, Any] = {"stream": True, "tokens_from": "local", "body_ms": 2.0, "prepared_ms": 20.0} | known
    return Record(
        id="r-1", number=1, arrived_s=5.0, at_wall_s=9.0, endpoint="/v1/completions", model="m",
        prompt_tokens_counted=1000, stages=stages or Stages(), attempts=list(attempts), **given,
    )  # fmt: skip


WHOLE = a_record(
    an_attempt(20.5, match_ms=0.5, decide_ms=1.0, duration_ms=100.0, end="ok"),
    stages=Stages(
        parse_ms=1.0, tokens_ms=3.0, keys_ms=1.0, pool_ms=4.0, match_ms=0.5, decide_ms=1.0, connect_ms=2.0,
        admission_ms=6.0,
    ),
    ttft_ms=60.0, duration_ms=121.0, cached_tokens=304,
)  # fmt: skip


def test_stages_follow_each_other_and_their_begins_from_their_lengths() -> None:
    # all is ready at 20: the pool was asked from 16 on, admission waited from 10 on, tokens from 2 + 1 until then
    assert build_timeline(WHOLE) == [
        StageTime("body", None, 0.0, 2.0),
        StageTime("parse", None, 2.0, 1.0),
        StageTime("wake", None, None, None),
        StageTime("tokens", None, 3.0, 7.0),
        StageTime("admission", None, 10.0, 6.0),
        StageTime("pool", None, 16.0, 4.0),
        StageTime("match", 1, 20.5, 0.5),
        StageTime("decide", 1, 21.0, 1.0),
        StageTime("connect", 1, 22.0, 2.0),
        StageTime("first_token", 1, 24.0, 36.0),
        StageTime("stream", 1, 60.0, 60.5),
    ]


def test_what_did_not_run_has_no_times() -> None:
    plain = a_record(
        an_attempt(20.5, decide_ms=1.0, duration_ms=100.0), stages=Stages(parse_ms=1.0), tokens_from="not_needed"
    )
    times = {stage.name: stage[2:] for stage in build_timeline(plain)}
    for name in ("tokens", "admission", "pool", "match", "connect"):
        assert times[name] == (None, None), name
    assert times["decide"] == (20.5, 1.0)
    assert times["first_token"] == (21.5, 99.0)
    assert "stream" not in times


def test_the_wait_for_an_instance_is_between_parsing_and_tokens() -> None:
    woken = a_record(stages=Stages(parse_ms=1.0, wake_ms=12.0))
    times = {stage.name: stage[2:] for stage in build_timeline(woken)}
    assert (times["wake"], times["tokens"]) == ((3.0, 12.0), (15.0, 5.0))


def test_a_request_that_runs_has_begins_and_no_lengths_yet() -> None:
    waiting = build_timeline(a_record(an_attempt(20.5, decide_ms=1.0)))
    assert waiting[-1] == StageTime("first_token", 1, 21.5, None)
    streaming = build_timeline(a_record(an_attempt(20.5, decide_ms=1.0), ttft_ms=60.0))
    assert streaming[-2:] == [StageTime("first_token", 1, 21.5, 38.5), StageTime("stream", 1, 60.0, None)]


def test_each_attempt_has_its_own_stages_and_the_last_one_the_answer() -> None:
    first, second = an_attempt(20.0, decide_ms=1.0, duration_ms=30.0), an_attempt(51.0, decide_ms=2.0, duration_ms=40.0)
    timeline = build_timeline(a_record(first, second, stages=Stages(connect_ms=3.0), ttft_ms=70.0))
    assert [stage for stage in timeline if stage.attempt is not None and stage.duration_ms is not None] == [
        StageTime("decide", 1, 20.0, 1.0),
        StageTime("first_token", 1, 21.0, 29.0),
        StageTime("decide", 2, 51.0, 2.0),
        StageTime("connect", 2, 53.0, 3.0),
        StageTime("first_token", 2, 56.0, 14.0),
        StageTime("stream", 2, 70.0, 21.0),
    ]


def test_the_prefill_half_of_a_pair_is_there_once() -> None:
    half = PrefillRecord(POLICY.decide(VIEW), 0, 0, "ok", 25.0)
    first = an_attempt(20.0, decide_ms=1.0, duration_ms=30.0, prefill=half)
    second = an_attempt(51.0, decide_ms=2.0, duration_ms=40.0, prefill=half)
    halves = [stage for stage in build_timeline(a_record(first, second)) if stage.name == "prefill"]
    assert halves == [StageTime("prefill", 1, 21.0, 24.0)]


def test_without_measured_begins_there_are_only_lengths() -> None:
    old = a_record(an_attempt(None), stages=Stages(parse_ms=1.0), body_ms=None, prepared_ms=None)
    assert {stage.start_ms for stage in build_timeline(old)} == {None}
    assert StageTime("parse", None, None, 1.0) in build_timeline(old)


def test_the_promise_and_what_came_of_it() -> None:
    # 3 queued and 680 tokens after 320: 5 + 0.125 * 680 + 680 * (320 + 340) / 1e6; measured from the choice at 20.5
    assert compare_promise(WHOLE) == Promise(320, 304, pytest.approx(93.4488), 39.5)


def test_a_promise_without_a_measure() -> None:
    assert compare_promise(a_record()) is None
    whole_answer = compare_promise(a_record(an_attempt(20.5), ttft_ms=60.0, stream=False))
    assert whole_answer == Promise(320, None, pytest.approx(93.4488), None)
    pair = an_attempt(20.5, prefill=PrefillRecord(POLICY.decide(VIEW), 0, 0))
    assert compare_promise(a_record(pair, ttft_ms=60.0)) == Promise(320, None, None, 39.5)
