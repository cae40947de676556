"""Progress-TTL's formulas with the arithmetic beside them."""

from __future__ import annotations

from math import log

import pytest

from scorers.admission.contract import Admission, AgentProgram, Answer, FleetMemory, Queue, QueueName, TargetMemory
from scorers.admission.progress_ttl import ProgressTtl
from tests.scorers.admission.test_thunderagent import Line

FLEET = FleetMemory(10_000, (TargetMemory("a/0", 10_000),))


def a_rule() -> ProgressTtl:
    rule = ProgressTtl()
    rule.adopt((), 0.0, idle_s=300.0, pooled=False)
    return rule


def queues() -> dict[QueueName, Queue]:
    return {"live": Line(), "parked": Line(), "again": Line(), "new": Line()}


def starts(rule: ProgressTtl, program: AgentProgram, tokens: int, now: float) -> Admission | None:
    admission = Admission(program, tokens, None, "new", now)
    rule.advance(FLEET, now)
    rule.arrived(program, now)
    program.silent_since_s = None
    if not rule.begins(admission, queues(), FLEET, now):
        return None
    program.running, program.context_tokens, program.target = 1, tokens, "a/0"
    rule.began(admission, now)
    rule.placed(admission, now)
    return admission


def ends(rule: ProgressTtl, admission: Admission, now: float, decode_s: float | None = None) -> None:
    program = admission.program
    answer = Answer(admission.prompt_tokens, admission.prompt_tokens, 0, program.prompt_tokens, decode_s)
    program.running, program.prompt_tokens = 0, admission.prompt_tokens
    rule.ended(admission, answer, now)
    program.silent_since_s = now
    rule.idle(program, now)


def test_what_recomputing_costs() -> None:
    """10,000 tokens: (.066 + .57 + .441) x 1.85."""
    assert a_rule().recovery_s(10_000) == pytest.approx(1.99245)


def test_a_place_is_kept_while_a_return_is_likely_and_not_where_it_comes_too_late() -> None:
    """C of 40,000 tokens is 17.4 s. Gaps of about 1 s: all have returned after a few seconds. Gaps of about a minute:
    none has within 10 s.
    """
    rule = a_rule()
    assert rule.keep_s(40_000) == 10.0, "nothing is known"
    rule._gaps.extend([log(0.9), log(1.0), log(1.1)] * 10)
    assert 1.1 < rule.keep_s(40_000) < 3.0
    rule._gaps.clear()
    rule._gaps.extend([log(55.0), log(60.0), log(65.0)] * 10)
    assert rule.keep_s(40_000) == 0.0


def test_a_program_is_paused_when_its_time_is_over() -> None:
    rule = a_rule()
    program = AgentProgram(b"a")
    turn = starts(rule, program, 9000, 0.0)
    assert turn is not None
    ends(rule, turn, 1.0)
    kept_s = rule.keep_s(9000)
    assert starts(rule, AgentProgram(b"b"), 2000, 1.0 + kept_s - 0.01) is None
    assert starts(rule, AgentProgram(b"b"), 2000, 1.0 + kept_s + 0.01) is not None


def after_two_rounds(decode_s: float) -> ProgressTtl:
    """Return a rule with one program, which has grown by 1,000 from its first round to its second, and runs its third
    with 5,000. Programs usually complete one round until a pause.
    """
    rule, program = a_rule(), AgentProgram(b"a")
    for prompt in (4000, 5000):
        turn = starts(rule, program, prompt, 0.0)
        assert turn is not None
        ends(rule, turn, 0.0, decode_s)
    assert starts(rule, program, 5000, 0.0)
    rule._ended_rounds.append(1)
    return rule


def test_growth_is_reserved_for_the_rounds_that_programs_usually_complete() -> None:
    """R is ceil(2 x 1) = 2, and the program has had two rounds: 1,000 x (2 + 0) are reserved of 10,000, 5,000 are used,
    so 3,000 fit and 3,001 do not. A round decodes for a moment only, so that a fuller batch gains nothing.
    """
    for tokens, begins in [(3000, True), (3001, False)]:
        assert (starts(after_two_rounds(0.001), AgentProgram(b"b"), tokens, 0.0) is not None) == begins


def test_a_fuller_batch_may_be_worth_more_than_what_it_costs() -> None:
    """A round decodes for a minute, and the second request of a batch nearly doubles its rate. More than the memory of
    the target is never admitted.
    """
    assert starts(after_two_rounds(60.0), AgentProgram(b"b"), 3001, 0.0)
    assert starts(after_two_rounds(60.0), AgentProgram(b"b"), 5001, 0.0) is None
