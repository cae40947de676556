"""Against keys seen in a real store, and against a write-up of what each rank of an engine stores under."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config.sections.pool import PoolModelConfig
from router.features.pool.keys import KeyForm, PoolKey, parse_key

DIGEST = bytes.fromhex("533ec8a1b5fc07589224e4e78c5f77a93711ebd3a1ab96fc3dd21808503da10d")
SEEN = f"mid@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{DIGEST.hex()}"  # vLLM 0.32, --model .../models/mid


def form(**config: object) -> KeyForm:
    made = KeyForm.from_config(PoolModelConfig.model_validate(config), "/models/mid/")
    assert made is not None
    return made


def test_a_key_as_it_was_seen() -> None:
    assert form().keys(DIGEST) == (SEEN,)
    assert parse_key(SEEN) == PoolKey("", "mid", "", 0, 0, 0, 0, 0, DIGEST)


@pytest.mark.parametrize(
    ("path", "model"),
    [("Qwen/Qwen3-8B", "Qwen3-8B"), ("mid", "mid"), ("/models/mid//", "mid"), ("", None), (None, None)],
)
def test_the_model_is_the_last_part_of_its_path(path: str | None, model: str | None) -> None:
    made = KeyForm.from_config(PoolModelConfig(), path)
    assert (made and made.model) == model
    named = KeyForm.from_config(PoolModelConfig(name="other"), path)
    assert named is not None
    assert named.keys(DIGEST)[0].startswith("other@tp_rank:0")


def test_prefix_and_namespace() -> None:
    keys = form(cache_prefix="blue", namespace="@store_pp:1@store_format:tp_shared_mqa").keys(b"\x01\xff")
    assert keys == ("blue@mid@store_pp:1@store_format:tp_shared_mqa@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@01ff",)


def test_a_shared_layout_tells_its_shards_itself() -> None:
    """Engines of 2 ranks with 2 KV heads, stored for engines of 4: shards 0..3, whatever the ranks."""
    shared = "@store_tp:4@store_pp:1@store_format:tp_shared_lbhnc"
    keys = form(tensor_parallel=2, kv_heads=2, namespace=shared).keys(DIGEST)
    assert keys == tuple(f"mid{shared}@tp_rank:{t}@pcp0@dcp0@pp_rank:0@group:0@{DIGEST.hex()}" for t in range(4))


@pytest.mark.parametrize(
    ("tensor_parallel", "kv_heads", "decode_context_parallel", "shards"),
    [
        (8, None, 1, 8),  # no copies known of
        (8, 4, 1, 4),  # two ranks each hold the same head
        (8, 16, 1, 8),
        (8, 1, 1, 1),  # MLA, MQA: all the same
        (8, 4, 2, 8),  # the copies hold different tokens
    ],
)
def test_ranks_that_hold_copies_share_a_key(
    tensor_parallel: int, kv_heads: int | None, decode_context_parallel: int, shards: int
) -> None:
    made = form(tensor_parallel=tensor_parallel, kv_heads=kv_heads, decode_context_parallel=decode_context_parallel)
    assert made.keys_per_block == shards


SIZES = st.sampled_from([1, 2, 4])


@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.sampled_from([None, 1, 2, 8]))
def test_the_keys_are_just_those_that_the_ranks_store(
    tp: int, pp: int, pcp: int, dcp: int, groups: int, heads: int | None
) -> None:
    copies = 1 if dcp > 1 or heads is None else max(1, tp // heads)
    stored = {
        f"mid@tp_rank:{t // copies}@pcp{c}@dcp{t % dcp if dcp > 1 else 0}@pp_rank:{p}@group:{g}@{DIGEST.hex()}"
        for t in range(tp)
        for c in range(pcp)
        for p in range(pp)
        for g in range(groups)
    }
    made = form(
        tensor_parallel=tp,
        pipeline_parallel=pp,
        prefill_context_parallel=pcp,
        decode_context_parallel=dcp,
        groups=groups,
        kv_heads=heads,
    )
    keys = made.keys(DIGEST)
    assert len(keys) == len(set(keys)) == made.keys_per_block
    assert set(keys) == stored


names = st.from_regex(r"[A-Za-z0-9_.-]+", fullmatch=True)


@given(
    st.builds(
        PoolKey,
        st.just("") | names | st.builds("{}@{}".format, names, names),
        names,
        st.sampled_from(["", "@store_tp:2@store_pp:1@store_format:tp_shared_lbnhc"]),
        *(st.integers(0, 99) for _ in range(5)),
        st.binary(min_size=1, max_size=32),
    )
)
def test_a_key_taken_apart_and_put_together(key: PoolKey) -> None:
    assert parse_key(str(key)) == key


@pytest.mark.parametrize("other", ["", "a", SEEN[:-1], SEEN.upper(), SEEN + "@x", "tensor:0", "@tp_rank:0" + SEEN[3:]])
def test_other_keys_of_the_store_are_none_of_ours(other: str) -> None:
    assert parse_key(other) is None
