"""Token ids of recent prompts: what is kept, under which prefixes, and what is dropped first."""

from __future__ import annotations

from router.features.preload.recent_prompts import ENTRY_BYTES, RecentPrompts
from tests.fakes.caches import prompt_of

SHARED = list(range(16))  # 4 blocks of 4
SIXTEEN_IDS = ENTRY_BYTES + 4 * 16


def test_a_prompt_is_kept_up_to_its_last_power_of_two_of_blocks() -> None:
    kept = RecentPrompts(1_000_000)
    prompt = prompt_of([*SHARED, *range(50, 60)])  # 26 tokens: 6 blocks, of which 4 are kept
    kept.add(prompt, "m", None)
    keys = prompt.keys[4]
    found = kept.by_prefix()
    assert list(found) == [keys[0], keys[1], keys[3]]
    assert found[keys[3]].ids.tolist() == SHARED
    assert (found[keys[1]].block_tokens, found[keys[1]].prefixes) == (4, (keys[0], keys[1], keys[3]))
    assert kept.held_bytes == SIXTEEN_IDS


def test_prompts_that_share_all_of_it_are_kept_once() -> None:
    kept = RecentPrompts(1_000_000)
    for last in range(10):
        kept.add(prompt_of([*SHARED, last]), "m", None)
    assert (len(kept), kept.held_bytes) == (1, SIXTEEN_IDS)


def test_the_least_recently_seen_is_dropped_first() -> None:
    kept = RecentPrompts(2 * SIXTEEN_IDS)
    first, second, third = (prompt_of([n, *SHARED[1:]]) for n in (100, 200, 300))
    kept.add(first, "m", None)
    kept.add(second, "m", None)
    kept.add(first, "m", None)
    kept.add(third, "m", None)
    assert (len(kept), kept.held_bytes) == (2, 2 * SIXTEEN_IDS)
    assert second.keys[4][0] not in kept.by_prefix()
    assert first.keys[4][0] in kept.by_prefix()


def test_nothing_is_kept_without_memory_for_it_and_of_prompts_without_a_block() -> None:
    off, on = RecentPrompts(0), RecentPrompts(1_000_000)
    off.add(prompt_of(SHARED), "m", None)
    on.add(prompt_of(SHARED[:3]), "m", None)
    assert (len(off), len(on)) == (0, 0)


def test_a_prefix_of_one_can_be_cut_off_and_names_its_model() -> None:
    kept = RecentPrompts(1_000_000)
    prompt = prompt_of([*SHARED, *range(16)], adapter="lora")
    kept.add(prompt, "m", "lora")
    cut = kept.by_prefix()[prompt.keys[4][7]].cut(4)
    assert (cut.ids.tolist(), cut.prefixes[-1], cut.model, cut.adapter) == (SHARED, prompt.keys[4][3], "m", "lora")
