"""The KV that requests come back for: what two prompts of the last minute and a half had, by model and role."""

from __future__ import annotations

from array import array

from router.fleet.working_set import KEEP_S, WorkingSet, WorkingSets
from router.kvcache.events import Key
from router.kvcache.tokenized_prompt import TokenizedPrompt
from tests.router.fleet.test_fleet import fleet_of, instance


def keys(session: int, count: int) -> list[Key]:
    return [Key(session * 1000 + number) for number in range(count)]


def test_a_session_counts_from_its_second_turn_on_with_what_both_turns_have() -> None:
    working_set = WorkingSet()
    working_set.add(keys(1, 10), 0.0)
    assert working_set.count_tokens(0.0) == 0
    working_set.add(keys(1, 14), 20.0)
    working_set.add(keys(2, 7), 20.0)
    assert working_set.count_tokens(20.0) == 10 * 512
    working_set.add(keys(1, 16), 40.0)
    assert working_set.count_tokens(40.0) == 14 * 512


def test_what_is_not_asked_for_again_is_forgotten() -> None:
    working_set = WorkingSet()
    for at_s in (0.0, 10.0):
        working_set.add(keys(1, 10), at_s)
    assert working_set.count_tokens(KEEP_S - 1) == 10 * 512
    assert working_set.count_tokens(KEEP_S + 5) == 0  # one prompt of the two is left


def test_a_count_is_used_for_five_seconds() -> None:
    working_set = WorkingSet()
    working_set.add(keys(1, 10), 0.0)
    assert working_set.count_tokens(0.0) == 0
    working_set.add(keys(1, 10), 1.0)
    assert working_set.count_tokens(4.5) == 0
    assert working_set.count_tokens(5.0) == 10 * 512


def test_models_and_roles_are_apart_and_blocks_are_counted_by_512_tokens() -> None:
    sets, fleet = WorkingSets(), fleet_of("a")
    prompt = TokenizedPrompt(array("i", range(2000)), True, "local", {16: keys(1, 125)}, 0.0, 0.0)
    for at_s in (0.0, 1.0):
        sets.add(instance(fleet, "a"), prompt, at_s)
    assert sets.count_tokens("m", "both", 2.0) == 3 * 512  # of 125 blocks of 16
    assert sets.count_tokens("m", "prefill", 2.0) is None
    assert sets.count_tokens("other", "both", 2.0) is None
