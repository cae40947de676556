"""The recordings as goldens, decoded by another library; then each rule by a message made for it."""

import json
import struct
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.vllm.kv_event import EXTRA_BYTES, MAX_GROUPS, PIECE_BLOCKS
from router.backends.vllm.kv_events import (
    EVENT_TOKENS,
    MESSAGE_EVENTS,
    PLAIN_BYTES,
    LargeBatch,
    MalformedMessage,
    ReplayEnd,
    decode,
    decode_replay,
)
from router.fleet.engine_limits import OverLimit
from router.kvcache.block_keys import Keyring
from router.kvcache.events import (
    BlocksCleared,
    BlocksPooled,
    BlocksRemoved,
    BlocksStored,
    Event,
    EventBatch,
    TargetId,
    Tier,
)
from router.kvcache.index import BlockIndex, HeldBlocks
from tests.paths import FRAMES
from tests.suites.properties import examples

TAGS = {BlocksStored: "BlockStored", BlocksRemoved: "BlockRemoved", BlocksCleared: "AllBlocksCleared"}
GOLDENS = sorted(path.stem for path in FRAMES.glob("*.json"))


def recorded(name: str) -> Iterator[list[bytes]]:
    data, at = (FRAMES / f"{name}.bin").read_bytes(), 0

    def number() -> int:
        nonlocal at
        at += 4
        return int(struct.unpack_from("<I", data, at - 4)[0])

    while at < len(data):
        parts = []
        for _ in range(number()):
            length = number()
            parts.append(data[at : at + length])
            at += length
        yield parts


def batches(name: str) -> list[EventBatch]:
    decoded = [decode(frames) for frames in recorded(name)]
    assert decoded
    assert all(isinstance(one, EventBatch) for one in decoded)
    return decoded  # type: ignore[return-value]


def message(*events: Any, ts: Any = 1.5, seq: int = 7) -> list[bytes]:
    return [b"", seq.to_bytes(8, "big"), msgspec.msgpack.encode([ts, list(events), 0])]


def batch_of(decoded: object) -> EventBatch:
    assert isinstance(decoded, EventBatch)
    return decoded


def one(event: Any) -> Event | str:
    """The event that `event` decodes to, or why it was skipped."""
    batch = decode(message(event))
    assert isinstance(batch, EventBatch)
    assert len(batch.events) + sum(batch.skipped.values()) == 1
    return batch.events[0] if batch.events else next(iter(batch.skipped))


def stored(**changes: Any) -> dict[str, Any]:
    plain = {
        "type": "BlockStored",
        "block_hashes": [11, 12],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return plain | changes


def low64(raw: Any) -> int:
    return int(raw["__bytes_hex__"][-16:], 16) if isinstance(raw, dict) else int(raw)


def singly(events: list[Event]) -> list[Event]:
    """Removals block by block, as vLLM tells them."""
    return [
        one
        for event in events
        for one in ([event._replace(hashes=[h]) for h in event.hashes] if isinstance(event, BlocksRemoved) else [event])
    ]


def test_there_are_goldens() -> None:
    assert len(GOLDENS) == 17


@pytest.mark.parametrize("name", GOLDENS)
def test_a_recording_decodes_to_what_another_library_saw(name: str) -> None:
    golden = json.loads((FRAMES / f"{name}.json").read_text())
    decoded = batches(name)
    assert len(decoded) == len(golden)
    for batch, wanted in zip(decoded, golden, strict=True):
        wall_s, events, rank = wanted["decoded"]
        assert (batch.seq, batch.wall_s, batch.rank, batch.skipped) == (wanted["seq"], wall_s, rank, {})
        for event, raw in zip(singly(batch.events), events, strict=True):
            assert TAGS[type(event)] == raw["type"]
            if isinstance(event, BlocksCleared):
                continue
            assert event.hashes == [low64(hash_) for hash_ in raw["block_hashes"]]
            assert (event.tier, event.group) == (Tier.GPU, raw["group_idx"])
            if isinstance(event, BlocksStored):
                parent = raw["parent_block_hash"]
                assert event.parent == (None if parent is None else low64(parent))
                assert list(event.token_ids) == raw["token_ids"]
                assert (event.block_tokens, event.adapter) == (raw["block_size"], raw["lora_name"])
                assert event.extras is None
                assert event.salt == ("tenant-x" if "salt" in name else None)


@pytest.mark.parametrize(
    ("name", "salt", "adapter"), [("t1-05-cache-salt", "tenant-x", None), ("t2-08-lora", None, "lora1")]
)
def test_salt_and_adapter_of_the_recordings(name: str, salt: str | None, adapter: str | None) -> None:
    firsts = [event for batch in batches(name) for event in batch.events if isinstance(event, BlocksStored)]
    assert {(event.salt, event.adapter) for event in firsts if event.parent is None} == {(salt, adapter)}
    assert {event.adapter for event in firsts} == {adapter}


@pytest.mark.parametrize(
    ("name", "gpu_blocks", "pool_blocks"),
    [("pool-A-cold-A", 8, 8), ("pool-A-next-A", 2, 2), ("pool-B-next-B", 2, 2), ("pool-B-pool-B", 8, 0)],
)
def test_pool_events_are_told_apart(name: str, gpu_blocks: int, pool_blocks: int) -> None:
    """What the saving instance put into the pool: the blocks that it has just stored, one event each."""
    decoded = batches(name)
    events = [event for batch in decoded for event in batch.events]
    stored = [
        hash for event in events if isinstance(event, BlocksStored) and event.tier is Tier.GPU for hash in event.hashes
    ]
    pooled = [event for event in events if isinstance(event, BlocksPooled)]
    assert (len(stored), len(pooled)) == (gpu_blocks, pool_blocks)
    assert len(events) == sum(isinstance(event, BlocksStored | BlocksPooled) for event in events)
    assert [event.hashes for event in pooled] == [[hash] for hash in stored][: len(pooled)]
    assert all(len(event.token_ids) == event.block_tokens == 128 for event in pooled)
    assert all(not batch.skipped for batch in decoded)


def test_lower_case_cpu_as_the_hosts_memory() -> None:
    frames = message(stored(medium="cpu"), {"type": "BlockRemoved", "block_hashes": [1], "medium": "cpu"})
    assert [type(event) for event in batch_of(decode(frames)).events] == [BlocksPooled]
    assert batch_of(decode(frames)).skipped == {"pool": 1}
    assert [event.tier for event in batch_of(decode(frames, host_cpu=True)).events] == [Tier.CPU, Tier.CPU]
    replayed = decode_replay([b"", *frames], host_cpu=True)
    assert [event.tier for event in batch_of(replayed).events] == [Tier.CPU, Tier.CPU]


@pytest.mark.parametrize("locality", ["LOCAL", None, "REMOTE"])
def test_blocks_on_storage_that_instances_share_are_not_the_publishers(locality: str | None) -> None:
    """vLLM 0.32, tiers `fs` and `obj`: locality is relative to the publisher, and absent where it is not configured."""
    fields = {"medium": "STORAGE", "locality": locality, "ownership": "kvcr", "session_id": "s"}
    array = ["BlockRemoved", [1], "STORAGE", 0, locality, "kvcr"]
    decoded = batch_of(decode(message(stored(**fields), array)))
    tiers = [event.tier for event in decoded.events]
    assert (tiers, decoded.skipped) == (([], {"remote": 2}) if locality == "REMOTE" else ([Tier.DISK] * 2, {}))
    assert [event.tier for event in batch_of(decode(message(stored(locality=locality)))).events] == [Tier.GPU]


@pytest.mark.parametrize(
    ("fields", "made"),
    [
        ({"token_ids": []}, BlocksPooled),  # after a retry the connector has no tokens left
        ({"token_ids": [1, 2, 3]}, "broken"),
        ({"block_size": None}, "placeholder"),
        ({"block_size": "2"}, "broken"),
        ({"block_hashes": None}, "broken"),
        ({"parent_block_hash": "x"}, "broken"),
    ],
)
def test_odd_pool_events(fields: dict[str, Any], made: type | str) -> None:
    event = one(stored(medium="cpu", **fields))
    assert (event if isinstance(event, str) else type(event)) == made


@pytest.mark.parametrize(("name", "last"), [("t1-replay-dealer", 15), ("t2-replay-dealer", 16)])
def test_a_recorded_replay(name: str, last: int) -> None:
    *decoded, end = [decode_replay(frames) for frames in recorded(name)]
    assert end == ReplayEnd()
    assert [batch.seq for batch in decoded if isinstance(batch, EventBatch)] == list(range(3, last + 1))
    live = {batch.seq: batch for golden in GOLDENS if golden.startswith(name[:2]) for batch in batches(golden)}
    assert decoded == [live[seq] for seq in range(3, last + 1)]


PROMPT_A = [(7 * i) % 4000 + 3 for i in range(300)]
PROMPT_B = [(11 * i + 5) % 4000 + 3 for i in range(300)]


@pytest.mark.parametrize(("run", "block"), [("t1", 128), ("t2", 32)])
def test_a_whole_recorded_life_fed_to_the_index(run: str, block: int) -> None:
    """The prompts of the recording script are looked up as its requests were made."""
    ring, target = Keyring(3), TargetId("e/0")
    index = BlockIndex(ring)
    index.join(target, "m")

    def held(ids: list[int], salt: str | None = None, adapter: str | None = None) -> int:
        return (
            index.match(ring.chain(ring.root("m", adapter, salt), ids, block), [target])
            .get(target, HeldBlocks(0, 0, 0))
            .gpu
        )

    def play(step: str) -> None:
        for batch in batches(f"{run}-{step}"):
            for event in batch.events:
                index.apply(target, event)

    full = 300 // block
    assert held(PROMPT_A) == 0
    play("01-first-long")
    assert (held(PROMPT_A), held(PROMPT_B)) == (full, 0)
    play("03-different")
    assert held(PROMPT_B) == full
    play("04-extend")
    assert held(PROMPT_A + PROMPT_B[:200]) == 500 // block
    assert held(PROMPT_A, salt="tenant-x") == 0
    play("05-cache-salt")
    assert held(PROMPT_A, salt="tenant-x") == full
    play("06-chat")
    play("07-text")
    if run == "t2":
        play("08-lora")
        assert held(PROMPT_A, adapter="lora1") == full
    play("09-evict")
    last = [(13 * i + 17 * 7) % 4000 + 3 for i in range(400)]
    assert held(last) == 400 // block
    assert index.stats(target).orphans == 0
    play("11-after-reset")
    assert (held(PROMPT_A), held(last), held(PROMPT_A, salt="tenant-x")) == (full, 0, 0)
    assert index.stats(target).blocks == (full, 0, 0)


def test_both_shapes_say_the_same() -> None:
    fields = [[11, 12], 9, [1, 2, 3, 4], 2, None, "CPU", "lora", [["lora"], None], 1]
    names = (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
    )
    as_map = stored(**dict(zip((*names, "group_idx"), fields, strict=True)))
    wanted = BlocksStored([11, 12], 9, array("I", [1, 2, 3, 4]), 2, Tier.CPU, 1, "lora", None, None)  # type: ignore[list-item,arg-type]
    assert one(as_map) == wanted
    assert one(["BlockStored", *fields]) == wanted
    assert one(["BlockStored", *fields, "full_attention", None, None, "from the future", 1]) == wanted
    assert one(["BlockRemoved", [5], "GPU", 1]) == one({"type": "BlockRemoved", "block_hashes": [5], "group_idx": 1})
    assert one(["AllBlocksCleared"]) == one({"type": "AllBlocksCleared"}) == BlocksCleared()


def test_old_arrays_end_early() -> None:
    event = one(["BlockStored", [11], None, [1, 2], 2, None])  # 0.9: no medium yet
    assert event == BlocksStored([11], None, array("I", [1, 2]), 2, Tier.GPU, 0, None, None, None)  # type: ignore[list-item]
    assert one(["BlockRemoved", [11]]) == BlocksRemoved([11], Tier.GPU, 0)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.GPU),
        ("GPU", Tier.GPU),
        ("gpu", Tier.GPU),
        ("CPU", Tier.CPU),
        ("Cpu", Tier.CPU),
        ("STORAGE", Tier.DISK),
        ("cuda:0", "medium"),
        ("disk", "medium"),
        (3, "medium"),
        ([], "medium"),
    ],
)
def test_medium(medium: Any, tier: Tier | str) -> None:
    for event in (one(stored(medium=medium)), one({"type": "BlockRemoved", "block_hashes": [1], "medium": medium})):
        assert (event if isinstance(event, str) else event.tier) == tier  # type: ignore[union-attr]


def test_hashes_become_unsigned_64_bits() -> None:
    digest = bytes(range(32))
    event = one(stored(block_hashes=[-1, digest], parent_block_hash=digest[:16]))
    assert isinstance(event, BlocksStored)
    assert event.hashes == [2**64 - 1, int.from_bytes(digest[-8:], "big")]
    assert event.parent == int.from_bytes(digest[8:16], "big")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_cache_spec_kind": "sliding_window"}, "group"),
        ({"kv_cache_spec_kind": "chunked_local_attention"}, "chunked"),
        ({"kv_cache_spec_kind": "cross_attention"}, "group"),
        ({"block_size": 0, "token_ids": []}, "placeholder"),
        ({"block_size": None, "token_ids": None}, "placeholder"),
        ({"token_ids": []}, "placeholder"),
        ({"token_ids": [1, 2, 3]}, "length"),
        ({"block_hashes": []}, "length"),
        ({"lora_id": 1}, "adapter"),
        ({"block_hashes": None}, "broken"),
        ({"block_hashes": ["x", 2]}, "broken"),
        ({"block_hashes": [b"short", 2]}, "broken"),
        ({"parent_block_hash": "x"}, "broken"),
        ({"token_ids": [1, 2, 3, -4]}, "broken"),
        ({"token_ids": [1, 2, 3, 2**32]}, "broken"),
        ({"token_ids": [1, 2, 3, "4"]}, "broken"),
        ({"token_ids": {"1": 2}}, "broken"),
        ({"block_size": 2.0}, "broken"),
        ({"group_idx": "0"}, "broken"),
        ({"lora_name": 5}, "broken"),
        ({"extra_keys": [None]}, "broken"),
        ({"extra_keys": ["salt", None]}, "broken"),
        ({"type": "BlockPromoted"}, "unknown"),
        ({"type": None}, "unknown"),
        ({"type": ["BlockStored"]}, "unknown"),
    ],
)
def test_what_is_skipped_and_why(changes: dict[str, Any], reason: str) -> None:
    assert one(stored(**changes)) == reason


@pytest.mark.parametrize("kind", [None, "full_attention", "mla_attention", "sink_full_attention"])
def test_full_attention_is_taken(kind: str | None) -> None:
    assert isinstance(one(stored(kv_cache_spec_kind=kind)), BlocksStored)


@pytest.mark.parametrize("event", [None, 3, "BlockStored", [], [None], [["BlockStored"]]])
def test_an_event_of_no_shape_is_broken(event: Any) -> None:
    assert one(event) == "broken"


def test_a_strange_event_does_not_take_the_batch_with_it() -> None:
    batch = decode(
        message(stored(), {"type": "New"}, 5, stored(medium="cpu"), stored(medium="tpu"), ["AllBlocksCleared"])
    )
    assert isinstance(batch, EventBatch)
    assert [type(event) for event in batch.events] == [BlocksStored, BlocksPooled, BlocksCleared]
    assert batch.skipped == {"unknown": 1, "broken": 1, "medium": 1}


def extra(keys: list[Any], adapter: str | None = None, parent: int | None = None) -> tuple[str | None, Any]:
    event = one(stored(extra_keys=keys, lora_name=adapter, parent_block_hash=parent))
    assert isinstance(event, BlocksStored)
    return event.salt, event.extras


def test_extra_keys_are_told_apart_by_place_and_name() -> None:
    assert extra([None, None]) == extra([[], None]) == (None, None)
    assert extra([["lora"], ["lora"]], adapter="lora") == (None, None)
    assert extra([["lora", "salt"], ["lora"]], adapter="lora") == ("salt", None)
    assert extra([["x", "x"], ["x"]], adapter="x") == ("x", None)  # salted with the adapter's name
    image, digest = ["image-1", -3], b"\x01" * 32
    salt, extras = extra([[image, "salt"], [digest]])
    assert salt == "salt"
    assert extras == (msgspec.msgpack.encode([image]), msgspec.msgpack.encode([digest]))
    assert extra([[image], None]) == (None, (msgspec.msgpack.encode([image]), b""))
    assert extra([["stray"], None], parent=5) == (
        None,
        (msgspec.msgpack.encode(["stray"]), b""),
    )  # no salt off the root


def test_mooncake_masters_events_pass_through() -> None:
    """Milliseconds as an int, nil sizes, signed hashes: nothing for the index, nothing to fail on."""
    event = {
        "event_id": 1,
        "timestamp": 1_795_226_212_615,
        "event_type": "stored",
        "type": "BlockStored",
        "model_name": None,
        "block_size": None,
        "lora_name": None,
        "medium": "disk",
        "object_key": "m@tp_rank:0@abc",
        "seq_hashes": [],
        "block_hashes": [-5],
        "token_ids": None,
        "parent_block_hash": None,
    }
    batch = decode(message(event, event | {"medium": "cpu"}, event | {"medium": "CPU"}, ts=1_795_226_212_615, seq=1))
    assert batch._replace(size_bytes=0) == EventBatch(1, 1_795_226_212.615, 0, [], {"medium": 1, "placeholder": 2})


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frames"),
        ([b"", b"\0" * 8], "frames"),
        ([b"", b"\0" * 8, b"", b""], "frames"),
        ([b"", b"\0" * 7, b"\x90"], "sequence"),
        ([b"", b"\0" * 8, b""], "payload"),
        ([b"", b"\0" * 8, b"\xc1"], "payload"),
        ([b"", b"\0" * 8, b"\xa1\xff"], "payload"),
        ([b"", b"\0" * 8, b"\x91" * 100_000], "payload"),
        ([b"", b"\0" * 8, b"\x81\x80\x01"], "payload"),
        ([b"", b"\0" * 8, msgspec.msgpack.encode({})], "payload"),
        ([b"", b"\0" * 8, msgspec.msgpack.encode([1.0])], "payload"),
        ([b"", b"\0" * 8, msgspec.msgpack.encode([1.0, None])], "payload"),
        ([b"", b"\0" * 8, msgspec.msgpack.encode([None, []])], "timestamp"),
        ([b"", b"\0" * 8, msgspec.msgpack.encode([float("nan"), []])], "timestamp"),
    ],
)
def test_malformed_messages(frames: list[bytes], reason: str) -> None:
    assert decode(frames) == MalformedMessage(reason)  # type: ignore[arg-type]


def test_replays_are_read_from_the_back() -> None:
    _, seq, payload = message(stored())
    old, new = decode_replay([b"", seq, payload]), decode_replay([b"", b"topic", seq, payload])
    assert old == new == decode(message(stored()))
    end = b"\xff" * 8
    assert decode_replay([b"", end, b""]) == decode_replay([b"", b"", end, b""]) == ReplayEnd()
    assert decode_replay([b"", seq]) == MalformedMessage("frames")
    assert decode_replay([b""] * 5) == MalformedMessage("frames")


def is_not_odd(value: Any) -> bool:
    """Return whether `value` is no list of ids with booleans, which are numbers for an array and not for msgpack."""
    return not isinstance(value, list) or not any(isinstance(each, bool) for each in value)


wire = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@examples(400)
@given(st.lists(wire | st.fixed_dictionaries({}, optional=dict.fromkeys(stored(), wire)), max_size=4), st.data())
def test_no_event_is_ever_an_error(events: list[Any], data: st.DataObject) -> None:
    broken = stored(**{data.draw(st.sampled_from([*stored(), "extra_keys", "group_idx"])): data.draw(wire)})
    batch = decode(message(*events, broken, ["AllBlocksCleared"]))
    assert isinstance(batch, EventBatch)
    assert len(batch.events) + sum(batch.skipped.values()) == len(events) + 2
    assert batch.events[-1] == BlocksCleared()


any_map = st.fixed_dictionaries({}, optional=dict.fromkeys(stored(), wire) | {"token_ids": wire.filter(is_not_odd)})


@examples(400)
@given(st.lists(any_map | any_map.map(lambda changes: stored(**changes)), min_size=1, max_size=4))
def test_maps_are_read_alike_alone_and_beside_an_array(maps: list[dict[str, Any]]) -> None:
    """Alone they are decoded with their token ids packed."""
    alone, beside = batch_of(decode(message(*maps))), batch_of(decode(message(*maps, ["AllBlocksCleared"])))
    assert beside == alone._replace(events=[*alone.events, BlocksCleared()], size_bytes=beside.size_bytes)


@examples(300)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_no_bytes_are_ever_an_error(frames: list[bytes]) -> None:
    assert isinstance(decode(frames), (EventBatch, MalformedMessage))
    assert isinstance(decode_replay(frames), (EventBatch, MalformedMessage, ReplayEnd))


def removal(*hashes: int, **changes: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"} | changes


def test_removals_that_follow_each_other_are_one_event_and_the_order_stays() -> None:
    batch = batch_of(decode(message(removal(1), removal(2, 3), stored(), removal(4), {"type": "odd"}, removal(5))))
    told = [event.hashes for event in batch.events if not isinstance(event, BlocksCleared)]
    assert told == [[1, 2, 3], [11, 12], [4, 5]]
    assert batch.skipped == {"unknown": 1}


def test_removals_of_other_tiers_and_groups_stay_apart() -> None:
    raw = [removal(1), removal(2, medium="CPU"), removal(3, medium="CPU", group_idx=1), removal(4)]
    told = [(e.hashes, e.tier, e.group) for e in batch_of(decode(message(*raw))).events if isinstance(e, BlocksRemoved)]
    assert told == [([1], Tier.GPU, 0), ([2], Tier.CPU, 0), ([3], Tier.CPU, 1), ([4], Tier.GPU, 0)]


# bounds and large messages


def decoded(frames: list[bytes]) -> Any:
    """Decode to the end."""
    found: Any = decode(frames)
    while isinstance(found, LargeBatch):
        found = found.step() or found
    return found


def test_an_event_is_read_alike_in_a_message_of_any_size() -> None:
    """Even one with a name that is no UTF-8, of a field that nothing reads."""
    odd = msgspec.msgpack.encode(stored(zz=1)).replace(b"\xa2zz", b"\xa2z\xff")
    padding = {"type": "odd", "x": "y" * PLAIN_BYTES}
    small, large = (
        batch_of(decoded(message(*(msgspec.Raw(event) if isinstance(event, bytes) else event for event in events))))
        for events in ([odd], [odd, padding])
    )
    assert [type(event) for event in small.events] == [BlocksStored]
    assert large.events == small.events


@pytest.mark.parametrize("changes", [{}, {"lora_name": "l", "extra_keys": [["l"]] * 5000}, {"medium": "cpu"}])
def test_a_large_event_is_the_same_in_pieces(changes: dict[str, Any]) -> None:
    """Whether it is in a small message or in a large one, decoded field by field."""
    blocks = 5000
    small = stored(block_hashes=list(range(blocks)), token_ids=[n % 100 for n in range(blocks)], block_size=1) | changes
    padding = {"type": "odd", "x": "y" * PLAIN_BYTES}
    plain, large = (batch_of(decoded(message(*events))) for events in ([small], [small, padding]))
    assert len(msgspec.msgpack.encode(small)) < PLAIN_BYTES
    whole = stored(block_hashes=list(range(20_000)), token_ids=list(range(20_000)), block_size=1)
    in_fields = batch_of(decoded(message(whole)))
    assert len(msgspec.msgpack.encode(whole)) > PLAIN_BYTES
    for batch, count in ((plain, blocks), (large, blocks), (in_fields, 20_000)):
        hashes: list[int] = []
        for event in batch.events:
            assert isinstance(event, (BlocksStored, BlocksPooled))
            assert len(event.hashes) <= PIECE_BLOCKS
            assert len(event.token_ids) == len(event.hashes)
            assert event.parent == (hashes[-1] if hashes else small["parent_block_hash"])
            hashes += event.hashes
        assert hashes == list(range(count))
    assert plain.events == large.events
    assert large.skipped == {"unknown": 1}


def test_a_salt_stays_with_the_first_piece() -> None:
    raw = stored(
        block_hashes=list(range(5000)), token_ids=[1] * 5000, block_size=1, parent_block_hash=None,
        extra_keys=[["salt"], *[None] * 4999],
    )  # fmt: skip
    events = batch_of(decoded(message(raw))).events
    assert [event.salt for event in events if isinstance(event, BlocksStored)] == ["salt", None, None]


def test_removals_are_merged_up_to_a_piece_and_cut_into_pieces() -> None:
    single = [removal(n) for n in range(PIECE_BLOCKS + 10)]
    events = batch_of(decoded(message(*single))).events
    assert [len(event.hashes) for event in events if isinstance(event, BlocksRemoved)] == [PIECE_BLOCKS, 10]
    events = batch_of(decoded(message(removal(*range(PIECE_BLOCKS * 2 + 1)), removal(7, 8)))).events
    assert [len(event.hashes) for event in events if isinstance(event, BlocksRemoved)] == [PIECE_BLOCKS] * 2 + [3]


@pytest.mark.parametrize(
    "changes",
    [
        {"group_idx": MAX_GROUPS},
        {"group_idx": -1},
        {"block_size": 2**20, "token_ids": [1] * 2**20, "block_hashes": [1]},
        {"lora_name": "l" * 257},
        {"extra_keys": [[["x" * (EXTRA_BYTES + 1), 0]], None]},
    ],
    ids=["group", "negative", "block size", "adapter", "extra keys"],
)
def test_fields_out_of_bounds_are_broken(changes: dict[str, Any]) -> None:
    assert batch_of(decoded(message(stored() | changes))).skipped == {"broken": 1}


def test_a_large_message_that_is_none() -> None:
    junk = b"\x93\x01" + b"\xc1" * PLAIN_BYTES
    assert decode([b"", bytes(8), junk]) == MalformedMessage("payload")
    assert decode([b"", bytes(8), bytes(PLAIN_BYTES + 1)]) == MalformedMessage("payload")
    assert decode(message("x" * PLAIN_BYTES, ts="now")) == MalformedMessage("payload")
    assert decode(message("x" * PLAIN_BYTES, ts=float("inf"))) == MalformedMessage("timestamp")
    for broken in (["x" * PLAIN_BYTES], [["x"], "y" * PLAIN_BYTES], {"type": ["x"], "y": "z" * PLAIN_BYTES}):
        assert sum(batch_of(decoded(message(broken, stored()))).skipped.values()) == 1


@pytest.mark.parametrize(
    "packed",
    [
        msgspec.msgpack.encode([1.5, [0] * (MESSAGE_EVENTS + 1), 0]),
        msgspec.msgpack.encode([1.5, [["BlockStored", [1], None, [1] * (EVENT_TOKENS + 1), 1]], 0]),
        msgspec.msgpack.encode([1.5, [["BlockRemoved", [1] * 200_000]], 0]),
        msgspec.msgpack.encode([1.5, [[[]] * 100_000], 0]),
        msgspec.msgpack.encode([1.5, [{str(n): 0 for n in range(20_000)}], 0]),
    ],
    ids=["events", "tokens", "blocks", "fields", "members"],
)
def test_more_than_any_step_of_an_engine_is_refused(packed: bytes) -> None:
    over = decoded([b"", bytes(8), packed])
    assert isinstance(over, OverLimit)
    assert over.limit == "message"


@examples(200)
@given(st.data())
def test_no_large_message_raises(data: st.DataObject) -> None:
    events = [stored(), removal(1), {"type": "odd", "x": "y" * PLAIN_BYTES}, ["BlockRemoved", list(range(30_000))]]
    payload = message(*events)[2]
    at = data.draw(st.integers(0, 400) | st.integers(0, len(payload)))
    junk = data.draw(st.binary(max_size=8))
    found = decoded([b"", bytes(8), payload[:at] + junk + payload[at + len(junk) :]])
    assert isinstance(found, (EventBatch, MalformedMessage, OverLimit))
