"""Keys that differ from the engines' in anything but the hash are found on the first block that an engine saves."""

from __future__ import annotations

import logging

import pytest

from tests.router.backends.mooncake.scene import MODEL, pooled, prompt, scene, until


async def test_a_wrong_prefix_is_found_on_the_first_saved_block(caplog: pytest.LogCaptureFixture) -> None:
    known = prompt(3)
    async with scene(model={"cache_prefix": "mine"}) as its:
        await its.held(known)  # the engines' path is known from here on
        for key in its.keys(known, range(3)):
            its.master.keys[key.replace("mine@", "theirs@")] = {"memory"}
        with caplog.at_level(logging.WARNING, "warmroute.pool"):
            for _ in range(3):
                its.pool.on_pooled(MODEL, pooled(known))
            await until("it is told", lambda: bool(caplog.records))
        line = caplog.records[0].message
        assert "cache_prefix" in line
        assert "theirs" in line
        report = its.pool.report().models[0]
        assert (report.keys, report.trouble) == ("wrong", line)
        assert await its.tokens(prompt(3, begins=1)) is None
        assert its.unknown["misnamed"] == 1


async def test_too_few_ranks_are_found_although_their_keys_are_there(caplog: pytest.LogCaptureFixture) -> None:
    known = prompt(3)
    async with scene() as its:
        await its.held(known)
        for key in its.keys(known, range(3)):
            its.master.keys[key] = its.master.keys[key.replace("tp_rank:0", "tp_rank:1")] = {"memory"}
        with caplog.at_level(logging.WARNING, "warmroute.pool"):
            its.pool.on_pooled(MODEL, pooled(known))
            await until("it is told", lambda: bool(caplog.records))
        assert "tensor_parallel" in caplog.records[0].message


async def test_right_keys_are_seen_to_be_right() -> None:
    known = prompt(3)
    async with scene() as its:
        its.put(known, range(3))
        await its.held(known)
        its.pool.on_pooled(MODEL, pooled(known))
        await until("checked", lambda: its.pool.report().models[0].keys == "right")
        assert its.pool.report().models[0].trouble is None


async def test_what_was_saved_before_the_first_prompt_is_checked_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """A router that joins a warm fleet: no engine may save anything new for a long time."""
    known = prompt(3)
    async with scene(model={"cache_prefix": "mine"}) as its:
        for key in its.keys(known, range(3)):
            its.master.keys[key.replace("mine@", "theirs@")] = {"memory"}
        its.pool.on_pooled(MODEL, pooled(known))
        with caplog.at_level(logging.WARNING, "warmroute.pool"):
            await its.held(prompt(3, begins=1))
            await until("it is told", lambda: bool(caplog.records))
        assert "set cache_prefix to 'theirs'" in caplog.records[0].message
