"""Keys that differ from the engines' in anything but the hash are found on the first block that an engine saves."""

from __future__ import annotations

import logging

import pytest

from router.config.sections.pool import PoolModelConfig
from router.features.pool.key_check import diagnose
from router.features.pool.keys import KeyForm
from tests.router.features.pool.scene import MODEL, pooled, prompt, scene, until


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


DIGEST = b"\xab" * 32


def keys(digest: bytes = DIGEST, path: str = "/models/mid", **config: object) -> tuple[str, ...]:
    return form(path, **config).keys(digest)


def form(path: str = "/models/mid", **config: object) -> KeyForm:
    made = KeyForm.from_config(PoolModelConfig.model_validate(config), path)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("engines", "ours", "changes"),
    [
        ({"cache_prefix": "blue"}, {}, "set cache_prefix to 'blue' (not '')"),
        ({}, {"cache_prefix": "blue"}, "set cache_prefix to '' (not 'blue')"),
        ({"path": "a/snapshots/1f2e"}, {}, "set name to '1f2e' (not 'mid')"),
        ({"namespace": "@store_pp:1@store_format:tp_shared_mqa"}, {}, "set namespace to '@store_pp:1@store_format:tp"),
        ({"tensor_parallel": 2}, {}, "set tensor_parallel to 2 (not 1)"),
        (
            {},
            {"tensor_parallel": 2},
            "set tensor_parallel to 1 (not 2), or kv_heads to 1 if the ranks beyond hold copies",
        ),
        ({"tensor_parallel": 8, "kv_heads": 4}, {"tensor_parallel": 8, "kv_heads": 2}, "set kv_heads to 4 (not 2)"),
        ({"pipeline_parallel": 2}, {}, "set pipeline_parallel to 2 (not 1)"),
        ({"prefill_context_parallel": 2}, {}, "set prefill_context_parallel to 2 (not 1)"),
        (
            {"tensor_parallel": 2, "decode_context_parallel": 2},
            {"tensor_parallel": 2},
            "set decode_context_parallel to 2 (not 1)",
        ),
        ({"groups": 2}, {}, "set groups to 2 (not 1)"),
        (
            {"cache_prefix": "blue", "path": "other", "tensor_parallel": 2},
            {},
            "set cache_prefix to 'blue' (not ''); set name to 'other' (not 'mid'); set tensor_parallel to 2 (not 1)",
        ),
    ],
)
def test_every_difference_is_named_with_what_to_set(
    engines: dict[str, object], ours: dict[str, object], changes: str
) -> None:
    there = keys(**engines)  # type: ignore[arg-type]
    line = diagnose("m", form(**ours), (*there, *keys(b"\xcd" * 32)), DIGEST)  # type: ignore[arg-type]
    assert line is not None
    assert line.startswith(f"pool.models.m: the engines' blocks have other keys, as {there[0]}: {changes}")


def test_nothing_to_say_of_a_block_that_is_not_there_or_named_alike() -> None:
    assert diagnose("m", form(), [*keys(b"\xcd" * 32), "anything", f"x@{DIGEST.hex()}"], DIGEST) is None
    assert diagnose("m", form(tensor_parallel=2), keys(tensor_parallel=2), DIGEST) is None


def test_other_fleets_of_the_model_do_not_confuse() -> None:
    others = keys(cache_prefix="green") + keys(path="large", tensor_parallel=4)
    assert diagnose("m", form(), (*others, *keys()), DIGEST) is None
    line = diagnose("m", form(), (*others, *keys(tensor_parallel=2)), DIGEST)
    assert line is not None
    assert line.endswith(": set tensor_parallel to 2 (not 1)")
