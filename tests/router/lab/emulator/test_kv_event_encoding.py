"""The wire format against recordings of vLLM 0.32, against the documented array format, and against our own decoder."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import msgspec
import pytest

from router.backends.vllm.kv_events import decode
from router.kvcache.events import BlocksCleared, BlocksRemoved, BlocksStored, EngineHash, Event, EventBatch, Tier
from router.lab.emulator import kv_publisher
from tests.paths import FRAMES

H1, H2 = EngineHash(2**64 - 1), EngineHash(7)
STORED = BlocksStored(
    hashes=[H1, H2],
    parent=None,
    token_ids=array("I", [1, 2, 3, 4]),
    block_tokens=2,
    tier=Tier.GPU,
    group=0,
    adapter=None,
    salt=None,
    extras=None,
)
EVENTS: list[Event] = [
    BlocksRemoved([H2], Tier.GPU, 0),
    STORED,
    STORED._replace(parent=H1, adapter="sql"),
    STORED._replace(salt="tenant", adapter="sql"),
    BlocksCleared(),
]


def written(events: list[Event], form: kv_publisher.Format = "map") -> Any:
    return msgspec.msgpack.decode(kv_publisher.encode_batch(events, 12.5, 3, form=form, adapter_ids={"sql": 1}))


def recorded(name: str) -> list[Any]:
    """The first message's payload of a recording."""
    data = (FRAMES / name).read_bytes()
    at, parts = 4, []
    for _ in range(3):
        (size,) = struct.unpack_from("<I", data, at)
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    payload: list[Any] = msgspec.msgpack.decode(parts[2])
    return payload


@pytest.mark.parametrize(
    ("name", "events"),
    [
        ("t1-01-first-long.bin", [STORED]),
        ("t1-05-cache-salt.bin", [STORED._replace(salt="tenant-x")]),
        ("t1-11-after-reset.bin", [BlocksCleared(), STORED]),
        ("t2-08-lora.bin", [BlocksRemoved([H1], Tier.GPU, 0), STORED._replace(adapter="sql")]),
    ],
)
def test_maps_have_exactly_the_recorded_keys_in_the_recorded_order(name: str, events: list[Event]) -> None:
    real = recorded(name)
    ours = written(events)
    assert [type(part) for part in ours] == [type(part) for part in real]
    real_keys = {event["type"]: list(event) for event in real[1]}
    assert {event["type"]: list(event) for event in ours[1]} == real_keys


@pytest.mark.parametrize(
    ("name", "event", "extra_keys"),
    [
        ("t1-01-first-long.bin", STORED, [None, None]),
        ("t1-05-cache-salt.bin", STORED._replace(salt="tenant-x"), [["tenant-x"], None]),
        ("t2-08-lora.bin", STORED._replace(adapter="sql"), [["sql"], ["sql"]]),
    ],
)
def test_constant_fields_and_extra_keys_have_the_recorded_shape(
    name: str, event: BlocksStored, extra_keys: list[list[str] | None]
) -> None:
    real = next(each for each in recorded(name)[1] if each["type"] == "BlockStored")
    ours = written([event])[1][0]
    assert ours["extra_keys"] == extra_keys
    assert [keys and len(keys) for keys in real["extra_keys"][:2]] == [keys and len(keys) for keys in extra_keys]
    for field in ("medium", "group_idx", "kv_cache_spec_kind", "parent_block_hash", "lora_id"):
        assert ours[field] == real[field]


def test_arrays_have_every_field_in_the_order_of_0_23() -> None:
    batch = written([STORED, BlocksRemoved([H2], Tier.GPU, 0), BlocksCleared()], form="array")
    stored = ["BlockStored", [H1, H2], None, [1, 2, 3, 4], 2, None, "GPU", None]
    stored += [[None, None], 0, "full_attention", None]
    assert batch == [12.5, [stored, ["BlockRemoved", [7], "GPU", 0], ["AllBlocksCleared"]], 3]


@pytest.mark.parametrize("form", ["map", "array"])
def test_the_routers_decoder_reads_back_what_was_written(form: kv_publisher.Format) -> None:
    payload = kv_publisher.encode_batch(EVENTS, 12.5, 3, form=form, adapter_ids={"sql": 1})
    batch = decode([b"", (41).to_bytes(8, "big"), payload])
    assert isinstance(batch, EventBatch)
    assert (batch.seq, batch.wall_s, batch.rank) == (41, 12.5, 3)
    assert batch.events == EVENTS
