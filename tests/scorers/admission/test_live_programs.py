"""Who is live, and how near the expectation comes to a truth that a model knows."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from statistics import mean

import pytest

from router.features.admission.programs import Programs
from scorers.admission.contract import AgentProgram
from scorers.admission.live_programs import LivePrograms


class Live:
    """Live programs as `fit` keeps them, beside the router's own table."""

    def __init__(self) -> None:
        self.live = LivePrograms(300.0)
        self.table = Programs(300.0, self.live.forget)

    def advance(self, now: float) -> None:
        self.live.advance(now)
        self.table.advance(now)

    def starts(self, name: bytes, tokens: int) -> AgentProgram:
        program = self.table.get_or_create(name)
        self.live.on_arrival(program)
        self.table.wake(program)
        program.running += 1
        program.context_tokens = tokens or program.context_tokens
        self.live.update(program)
        return program

    def ends(self, program: AgentProgram, prompt_tokens: int | None, context_tokens: int, now: float) -> None:
        program.running -= 1
        program.prompt_tokens = prompt_tokens if prompt_tokens is not None else program.prompt_tokens
        program.context_tokens = context_tokens
        self.live.update(program)
        if not program.running and self.table.rest(program, now):
            self.live.on_idle(program, now)

    def a_turn(self, name: bytes, tokens: int, now: float) -> None:
        self.ends(self.starts(name, tokens), tokens, tokens + 10, now)


def test_what_a_program_shares_is_not_in_the_sum_but_in_the_running_contexts() -> None:
    live = Live()
    program = live.starts(b"a", 1000)
    program.shared_tokens = 512
    live.live.recount(program)
    assert (live.live.expected_load().context_tokens, live.live.running_tokens) == (488, 1000)
    live.ends(program, 1000, 1010, 0.0)
    assert (live.live.expected_load().context_tokens, live.live.running_tokens) == (498, 0)
    program.shared_tokens = None
    live.live.recount(program)
    assert live.live.expected_load().context_tokens == 1010
    live.live.forget(program)
    assert live.live.expected_load().context_tokens == 0


def test_a_program_counts_with_its_prompt_while_it_runs_and_with_its_answer_after_that() -> None:
    live = Live()
    program = live.starts(b"a", 100)
    assert live.live.expected_load() == (1, 100)
    live.ends(program, 100, 130, 0.0)
    assert live.live.expected_load() == (1, 130)
    assert live.live.expected_load().mean_tokens == 130


def test_a_turn_that_failed_leaves_what_was_before_it() -> None:
    live = Live()
    live.a_turn(b"a", 100, 0.0)
    live.ends(live.starts(b"a", 500), None, 110, 1.0)
    assert live.live.expected_load() == (1, 110)
    live.ends(live.starts(b"b", 500), None, 0, 1.0)
    assert (live.live.expected_load(), len(live.table)) == ((1, 110), 1), "it never had an answer: nobody knows it"


def test_a_prompt_of_unknown_length_counts_with_what_was_known() -> None:
    live = Live()
    live.a_turn(b"a", 100, 0.0)
    live.starts(b"a", 0)
    assert live.live.expected_load() == (1, 110)


def test_one_that_is_silent_for_long_enough_is_forgotten() -> None:
    live = Live()
    live.a_turn(b"a", 100, 0.0)
    live.advance(299.9)
    assert len(live.table) == 1
    live.advance(300.0)
    assert (len(live.table), live.live.expected_load()) == (0, (0, 0))
    assert live.live.expected_load().mean_tokens == 0


@pytest.mark.parametrize(("pause_s", "turns"), [(10.0, 33), (60.0, 10), (2.0, 100)])
def test_programs_that_end_unannounced_cost_little_capacity(pause_s: float, turns: int) -> None:
    """Sixty agents at once, in whose sessions one turn in `turns` is the last, unannounced; pauses
    are exponential, answers take 2 s. When a session ends, the next one begins. Sixty is the truth; beyond it, room is
    lost to those who will never come back, below it, too many are let in. The prior makes it a little more than that.
    """
    dice, live, now = Random(1), Live(), 0.0
    coming: list[tuple[float, int, AgentProgram | None]] = []  # when, who, what ends then
    for number in range(60):
        heappush(coming, (dice.random() * pause_s, number, None))
    names, counted = 60, []
    while now < 4000.0:
        now, number, ends = heappop(coming)
        live.advance(now)
        if ends is None:
            heappush(coming, (now + 2.0, number, live.starts(b"%d" % number, 100)))
            continue
        live.ends(ends, 100, 110, now)
        if dice.random() < 1 / turns:
            number, names = names, names + 1
            heappush(coming, (now, number, None))
        else:
            heappush(coming, (now + dice.expovariate(1 / pause_s), number, None))
        if now > 1000.0:
            counted.append(live.live.expected_load().programs)
    assert 0.95 * 60 < mean(counted) < 1.15 * 60
