"""The plan for an engine that joins: what most sessions will begin with there, within the budget, and nothing twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.features.preload.plan import HotPrefix, PlannedPrefix, plan_join
from router.features.preload.recent_prompts import RecentPrompts
from router.kvcache.events import Key, TargetId
from router.kvcache.tokenized_prompt import TokenizedPrompt
from tests.fakes.caches import prompt_of

NEW, OLD, THIRD = TargetId("new/0"), TargetId("old/0"), TargetId("third/0")
SYSTEM = list(range(16))  # 4 blocks of 4, which two agents share
LONG = prompt_of([*SYSTEM, *range(100, 116)])  # 8 blocks: one agent
OTHER = prompt_of([*SYSTEM, *range(200, 216)])  # another one


def hot(prompt: TokenizedPrompt, blocks: int, sessions: int) -> HotPrefix:
    return HotPrefix(prompt.keys[4][blocks - 1], blocks, sessions, sessions, 100)


def plan(
    wanted: Sequence[HotPrefix], budget: int = 1000, held: Mapping[Key, Sequence[TargetId]] | None = None
) -> list[PlannedPrefix]:
    kept = RecentPrompts(1_000_000)
    kept.add(LONG, "m", None)
    kept.add(OTHER, "m", None)
    return plan_join(NEW, wanted, kept.by_prefix(), budget, lambda key: (held or {}).get(key, ()))


def test_most_sessions_first_and_what_an_earlier_one_brought_costs_nothing() -> None:
    planned = plan([hot(LONG, 8, 3), hot(LONG, 4, 9), hot(LONG, 2, 9), hot(OTHER, 8, 2)])
    assert [(one.prompt.ids.tolist(), one.new_tokens) for one in planned] == [
        (SYSTEM, 16),  # 9 sessions; its first 2 blocks are not sent again
        (LONG.ids.tolist(), 16),
        (OTHER.ids.tolist(), 16),
    ]
    assert planned[1].prompt.prefixes == tuple(LONG.keys[4][n - 1] for n in (1, 2, 4, 8))


def test_the_longest_of_a_run_brings_all_of_it() -> None:
    (only,) = plan([hot(LONG, 1, 5), hot(LONG, 2, 5), hot(LONG, 4, 5), hot(LONG, 8, 5)])
    assert (len(only.prompt.ids), only.new_tokens, only.demand) == (32, 32, 5)


def test_sessions_may_begin_at_every_holder_so_the_new_one_gets_its_part() -> None:
    long, other = LONG.keys[4][7], OTHER.keys[4][7]
    held = {long: [OLD, THIRD], other: [OLD]}
    planned = plan([hot(LONG, 8, 9), hot(OTHER, 8, 8)], held=held)
    assert [(one.prompt.prefixes[-1], one.demand) for one in planned] == [(other, 4), (long, 3)]


def test_where_fewer_than_one_session_is_expected_nothing_is_loaded() -> None:
    held = {LONG.keys[4][7]: [OLD, THIRD]}
    assert plan([hot(LONG, 8, 2)], held=held) == []  # one in three
    assert len(plan([hot(LONG, 8, 3)], held=held)) == 1


def test_the_budget_holds_and_what_still_fits_is_taken() -> None:
    planned = plan([hot(LONG, 8, 9), hot(LONG, 4, 5)], budget=20)
    assert [len(one.prompt.ids) for one in planned] == [16]
    assert plan([hot(LONG, 8, 9)], budget=31) == []


def test_what_the_target_holds_or_is_not_kept_is_not_loaded() -> None:
    assert plan([hot(LONG, 8, 9)], held={LONG.keys[4][7]: [NEW]}) == []
    assert plan([HotPrefix(Key(4711), 4, 9, 9, 100)]) == []
