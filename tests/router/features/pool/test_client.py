"""The room as a request meets it: numbers, "unknown" with its reason, and never an exception or a long wait."""

from __future__ import annotations

import logging

import pytest

from router.kvcache.engine_hashes import EngineChain
from tests.router.features.pool.scene import BLOCK, CHAIN, MODEL, ORIGIN, pooled, prompt, scene, stored, until


async def test_leading_blocks_that_are_there_count_up_to_the_first_hole() -> None:
    known = prompt(10)
    async with scene() as its:
        its.put(known, [0, 1, 2, 4, 5])
        hit = await its.held(known)
        assert hit is not None
        assert (hit.tokens, hit.memory_tokens) == (3 * BLOCK, 3 * BLOCK)
        assert 0 <= hit.age_s < 5
        assert its.pool.report().hits == 1


async def test_nothing_there_is_a_fact_once_the_hash_is_proved() -> None:
    async with scene() as its:
        assert (await its.tokens(prompt(10))) == 0
        assert its.pool.report().misses == 1


async def test_memory_and_disk_are_told_apart() -> None:
    known = prompt(6)
    async with scene() as its:
        its.put(known, range(2))
        its.put(known, range(2, 4), "disk")
        its.put(known, range(3, 4))  # both: the engine loads from memory
        its.put(known, range(4, 5))
        hit = await its.held(known)
        assert hit is not None
        assert (hit.tokens, hit.memory_tokens) == (5 * BLOCK, 2 * BLOCK)


async def test_a_block_counts_only_with_the_keys_of_all_its_ranks() -> None:
    known = prompt(6)
    async with scene(model={"tensor_parallel": 2}) as its:
        its.put(known, range(4))
        assert await its.tokens(known) == 4 * BLOCK
    async with scene(model={"tensor_parallel": 2}) as its:
        its.put(known, range(4))
        first, second = its.keys(known, [2])
        del its.master.keys[second]
        assert first in its.master.keys
        assert await its.tokens(known) == 2 * BLOCK


@pytest.mark.parametrize(
    ("extra", "complete", "usable"),
    [
        (1, True, 3),  # 13 tokens: (13 - 1) // 4
        (0, True, 2),  # 12 tokens: the last one is always computed, (12 - 1) // 4
        (0, False, 3),  # more follows that we cannot see
    ],
)
async def test_no_more_is_promised_than_an_engine_can_use(extra: int, complete: bool, usable: int) -> None:
    known = prompt(3, extra=extra, complete=complete)
    async with scene() as its:
        its.put(known, range(3))
        assert await its.tokens(known) == usable * BLOCK


async def test_names_with_odd_characters_are_escaped_and_those_with_a_comma_are_not_asked_for() -> None:
    known = prompt(2)
    async with scene(model={"cache_prefix": "a+b c%40&d#é"}) as its:
        its.put(known, range(2))
        assert await its.tokens(known) == 2 * BLOCK
    async with scene(model={"cache_prefix": "a,b"}) as its:
        assert await its.tokens(known) is None
        assert its.unknown == {"no_comma": 1}
        assert its.master.queries == []


async def test_an_answer_after_the_deadline_is_unknown_now_and_known_to_the_next() -> None:
    known = prompt(5)
    async with scene(deadline_ms=20, health_interval_s=30) as its:
        its.put(known, range(5))
        its.faults(slow_ms=400)
        assert await its.tokens(known) is None
        assert its.pool.report().queries.answers == 0
        assert its.unknown == {"late": 1}
        await until("the late answer comes", lambda: its.pool.report().queries.answers == 1)
        assert await its.tokens(known) == 5 * BLOCK
        assert len(its.master.queries) == 1


@pytest.mark.parametrize(("fault", "reason"), [("error", "error"), ("standby", "standby")])
async def test_a_master_that_cannot_tell_is_unknown(fault: str, reason: str) -> None:
    async with scene(health_interval_s=30) as its:
        its.faults(**{fault: True})
        assert await its.tokens(prompt(3)) is None
        assert its.unknown == {reason: 1}


async def test_a_silent_master_costs_no_request_more_than_the_deadline() -> None:
    async with scene(deadline_ms=20, health_interval_s=0.3) as its:
        its.faults(silent=True)  # for ever: what returns has not waited for it
        assert [await its.tokens(prompt(3)) for _ in range(3)] == [None] * 3
        await until("it is not taken for the leader any more", lambda: its.leader is None)
        assert await its.tokens(prompt(3)) is None
        assert its.unknown["no_leader"] == 1


async def test_before_the_hash_is_proved_found_is_found_and_not_found_is_unknown() -> None:
    there, elsewhere = prompt(3), prompt(3, begins=1)
    async with scene(calibrated=False) as its:
        its.put(there, range(3))
        assert await its.tokens(there) == 3 * BLOCK
        assert await its.tokens(elsewhere) is None
        assert its.unknown == {"uncalibrated": 1}
        its.pool.on_stored(MODEL, stored(prompt(1, begins=99)))
        assert await its.tokens(elsewhere) == 0


async def test_a_wrong_hash_is_refuted_and_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    known = prompt(3)
    async with scene(calibrated=False) as its:
        its.put(known, range(3))
        with caplog.at_level(logging.WARNING, "warmroute.pool"):
            for begins in range(3):
                its.pool.on_stored(MODEL, stored(prompt(1, begins=begins), chain=EngineChain("sha256")))
        assert await its.tokens(known) is None
        assert its.unknown == {"uncalibrated": 1}
        assert [("hash_algo" in record.message, "\n" in record.message) for record in caplog.records] == [(True, False)]
        assert its.pool.report().models[0].trouble == caplog.records[0].message


async def test_what_is_missing_of_a_prompts_origin_is_unknown() -> None:
    known = prompt(3)
    async with scene() as its:
        assert await its.held(known._replace(keys={}), ORIGIN) is None
        assert await its.held(known._replace(keys={**known.keys, 16: []}), ORIGIN) is None
        assert await its.held(known, ORIGIN._replace(path=None)) is None
        assert await its.held(known, ORIGIN._replace(adapter=("lora", ""))) is None
        assert its.unknown == {"no_block_size": 2, "no_name": 2}


async def test_adapters_and_salts_have_blocks_of_their_own() -> None:
    salt, adapter = "tenant", ("lora", "/adapters/lora")
    async with scene() as its:
        its.put(prompt(3), range(3))
        salted = await its.held(prompt(3, salt=salt), ORIGIN._replace(salt=salt))
        tuned = await its.held(prompt(3, adapter="lora"), ORIGIN._replace(adapter=adapter))
        assert salted is not None
        assert tuned is not None
        assert salted.tokens == tuned.tokens == 0
        # block 0 of a salted prompt is another, and so are all that follow; put the salted prompt's there
        for digest in CHAIN.chain(None, prompt(2).ids, BLOCK, salt=salt):
            its.master.keys[its.form.keys(digest)[0]] = {"memory"}
        await its.forget()
        salted = await its.held(prompt(3, salt=salt), ORIGIN._replace(salt=salt))
        assert salted is not None
        assert salted.tokens == 2 * BLOCK


async def test_a_pooled_event_counts_as_the_pools_word() -> None:
    known = prompt(3)
    async with scene() as its:
        its.pool.on_pooled(MODEL, pooled(known, 3))
        assert await its.tokens(known) == 3 * BLOCK
        assert its.master.queries == []
