"""The workloads of the cells: what the variants of presets share, and how tenants share a fleet."""

from __future__ import annotations

from collections import Counter

import pytest

from router.lab.workloads.model import Span, session_contexts
from router.lab.workloads.presets import CODEX
from tests.agreement.kinds import FAMILIES, OPEN, begin_at, family, share_fleet


def test_one_prompt_of_few_takes_half_where_they_are_skewed() -> None:
    preset = OPEN["few-zipf1.4"].preset
    assert preset is not None
    sessions = preset.workload(1).sessions
    shared = Counter(session.turns[0].fresh[0].source for session in sessions)
    assert len(shared) == 8
    assert shared.most_common(1)[0][1] / len(sessions) == pytest.approx(0.49, abs=0.03)  # 1 / sum of k^-1.4


@pytest.mark.parametrize(("workload", "answer"), [("answers-1k", 1000), ("answers-4k", 4000), ("short", 250)])
def test_answers_have_their_length_and_prompts_share_nothing(workload: str, answer: int) -> None:
    preset = OPEN[workload].preset
    assert preset is not None
    turns = [session.turns[0] for session in preset.workload(1).sessions]
    assert sum(turn.output_tokens for turn in turns) / len(turns) == pytest.approx(answer, rel=0.05)
    sources = [span.source for turn in turns for span in turn.fresh]
    assert len(set(sources)) == len(sources) == len(turns)


def test_every_workload_has_a_family() -> None:
    assert {family(workload) for workload in OPEN} | {family("mixed")} == set(FAMILIES)


def test_tenants_have_numbers_of_their_own_and_begin_in_order() -> None:
    served = share_fleet(6, batch_per_s=2.0, until_s=300.0, seed=1)
    numbers = [session.number for session in served.sessions]
    assert len(set(numbers)) == len(numbers)
    starts = [session.start_s for session in served.sessions]
    assert starts == sorted(starts)
    batch = [session for session in served.sessions if len(session.turns) == 1 and session.turns[0].think_s == 0]
    assert len(batch) == pytest.approx(600, abs=5)
    agents = len(numbers) - len(batch)
    assert agents == pytest.approx(6 + 3, abs=2)
    assert served == share_fleet(6, batch_per_s=2.0, until_s=300.0, seed=1)


def test_an_agent_met_in_mid_session_sends_what_it_would_have_sent() -> None:
    (session,) = CODEX.scale(sessions=1 / 610).workload(1).sessions
    begun = begin_at(session, 5, 77, 12.0)
    assert (begun.number, begun.start_s) == (77, 12.0)
    assert len(begun.turns) == len(session.turns) - 5
    whole, rest = session_contexts(session)[5:], session_contexts(begun)
    assert rest[0][0] == whole[0][0]
    lengths = [[sum(span.tokens for span in prompt) for prompt, _ in contexts] for contexts in (whole, rest)]
    assert lengths[0] == lengths[1]
    assert begun.answer(0) != Span(session.answer(5).source, begun.turns[0].output_tokens)
