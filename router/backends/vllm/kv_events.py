"""vLLM's KV event messages: decodes ZeroMQ frames into batches of domain events (`protocol.md` 1, 2).

A message is `[topic][sequence, u64 big endian][msgpack [ts, events, rank]]`. Events are maps since vLLM 0.24 and arrays
before; both are read, event by event, untyped: a typed decoder loses the whole batch for one unknown event. Events
without token blocks of this rank are skipped and counted by reason, never an error:

    unknown      an unknown type                           broken    fields of the wrong type, or that do not fit
    pool         a removal from the shared store           medium    an unknown storage medium
    group        not full attention: cannot be matched     adapter   a LoRA without its name (vLLM < 0.16)
                 by tokens (sliding window, state space)   placeholder  hashes without tokens (offload tiers)
    length       tokens and hashes do not line up (masked groups)

`"cpu"` in lower case is the shared pool (MooncakeStoreConnector), or the instance's host memory where the operator
configures so (`host_cpu`; LMCache uses the same word). Removals carry no kind of group, so those of other groups pass;
they name hashes that the index does not hold there. Knows nothing of targets, order or keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal, NamedTuple, TypeGuard, cast

import msgspec

from router.kvcache.events import (
    BlocksCleared,
    BlocksPooled,
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    Event,
    EventBatch,
    Tier,
)

Skipped = Literal["unknown", "broken", "pool", "medium", "group", "adapter", "placeholder", "length"]

U64 = 0xFFFF_FFFF_FFFF_FFFF
END_OF_REPLAY = b"\xff" * 8  # sequence -1
MILLISECONDS_FROM = 1e11  # in seconds the year 5138: Mooncake's master sends milliseconds

# Array events: the tag, then these in order; older versions stop earlier.
FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
FULL_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention")
GPU = Tier.GPU
ONLY_INTS = {int}
TIERS = {"gpu": Tier.GPU, "cpu": Tier.CPU, "storage": Tier.DISK}

_unpack = msgspec.msgpack.Decoder().decode


class MalformedMessage(NamedTuple):
    """A message that cannot be decoded."""

    reason: Literal["frames", "sequence", "payload", "timestamp"]


class ReplayEnd(NamedTuple):
    """The end marker of a replay."""


def decode(frames: Sequence[bytes], *, host_cpu: bool = False) -> EventBatch | MalformedMessage:
    """Decode one message of the event stream."""
    if len(frames) != 3:
        return MalformedMessage("frames")
    return _batch(frames[1], frames[2], host_cpu)


def decode_replay(frames: Sequence[bytes], *, host_cpu: bool = False) -> EventBatch | ReplayEnd | MalformedMessage:
    """Decode one replay answer, as a DEALER receives it. Read from the back: since 0.26 there is a topic in front."""
    if not 3 <= len(frames) <= 4:
        return MalformedMessage("frames")
    if frames[-2] == END_OF_REPLAY:
        return ReplayEnd()
    return _batch(frames[-2], frames[-1], host_cpu)


def _batch(sequence: bytes, payload: bytes, host_cpu: bool) -> EventBatch | MalformedMessage:
    if len(sequence) != 8:
        return MalformedMessage("sequence")
    try:
        content = _unpack(payload)
    except (ValueError, RecursionError):  # msgspec's own errors, bad UTF-8, absurd nesting
        return MalformedMessage("payload")
    if type(content) is not list or len(content) < 2 or type(content[1]) is not list:
        return MalformedMessage("payload")
    stamp, raw_events = content[0], content[1]
    if type(stamp) not in (int, float) or not isfinite(stamp):
        return MalformedMessage("timestamp")
    rank = content[2] if len(content) > 2 and type(content[2]) is int else None
    events: list[Event] = []
    skipped: dict[str, int] = {}
    for raw in raw_events:
        event = _event(raw, host_cpu)
        if isinstance(event, str):
            skipped[event] = skipped.get(event, 0) + 1
        elif type(event) is BlocksRemoved and events and _extends(last := events[-1], event):
            last.hashes.extend(event.hashes)
        else:
            events.append(event)
    wall_s = stamp / 1000 if stamp > MILLISECONDS_FROM else float(stamp)
    return EventBatch(int.from_bytes(sequence, "big"), wall_s, rank, events, skipped)


def _extends(last: Event, event: BlocksRemoved) -> TypeGuard[BlocksRemoved]:
    """Return whether a removal merges into the last event: vLLM sends one per evicted block; merged they cost half."""
    return type(last) is BlocksRemoved and last.tier is event.tier and last.group == event.group


def _event(raw: Any, host_cpu: bool) -> Event | Skipped:
    if type(raw) is dict:
        kind, fields = raw.get("type"), raw
    elif type(raw) is list and raw and type(raw[0]) is str:
        kind = raw[0]
        fields = dict(zip(FIELDS.get(kind, ()), raw[1:], strict=False))  # shorter: older; longer: newer
    else:
        return "broken"
    if kind == "BlockStored":
        return _stored(fields, host_cpu)
    if kind == "BlockRemoved":
        return _removed(fields, host_cpu)
    return BlocksCleared() if kind == "AllBlocksCleared" else "unknown"


def _stored(fields: dict[str, Any], host_cpu: bool) -> BlocksStored | BlocksPooled | Skipped:
    tier = _tier(fields.get("medium"), host_cpu)
    if tier == "pool":
        return _pooled(fields)
    if isinstance(tier, str):
        return tier
    if fields.get("kv_cache_spec_kind") not in FULL_ATTENTION:
        return "group"
    block_tokens, raw_ids = fields.get("block_size"), fields.get("token_ids")
    if not block_tokens or not raw_ids:
        return "placeholder"
    hashes, token_ids, group = _hashes(fields.get("block_hashes")), _token_ids(raw_ids), _group(fields)
    if hashes is None or token_ids is None or group is None or type(block_tokens) is not int:
        return "broken"
    if len(token_ids) != block_tokens * len(hashes):
        return "length"
    raw_parent, adapter = fields.get("parent_block_hash"), fields.get("lora_name")
    parent = None if raw_parent is None else _hash(raw_parent)
    extra = _extra_keys(fields.get("extra_keys"), len(hashes), adapter, root=raw_parent is None)
    if (parent is None and raw_parent is not None) or extra is None or type(adapter) not in (str, type(None)):
        return "broken"
    if adapter is None and fields.get("lora_id") is not None:
        return "adapter"
    return BlocksStored(hashes, parent, token_ids, block_tokens, tier, group, adapter, extra.salt, extra.extras)


def _pooled(fields: dict[str, Any]) -> BlocksPooled | Skipped:
    """Decode blocks put into the pool. Tokens may be missing: the hashes are enough (`protocol.md` 6.6)."""
    hashes, token_ids = _hashes(fields.get("block_hashes")), _token_ids(fields.get("token_ids") or [])
    raw_parent, block_tokens = fields.get("parent_block_hash"), fields.get("block_size")
    parent = None if raw_parent is None else _hash(raw_parent)
    if not block_tokens:
        return "placeholder"
    if hashes is None or token_ids is None or type(block_tokens) is not int:
        return "broken"
    if (parent is None and raw_parent is not None) or len(token_ids) not in (0, block_tokens * len(hashes)):
        return "broken"
    return BlocksPooled(hashes, parent, token_ids, block_tokens)


def _removed(fields: dict[str, Any], host_cpu: bool) -> BlocksRemoved | Skipped:
    tier = _tier(fields.get("medium"), host_cpu)
    if isinstance(tier, str):
        return tier
    hashes, group = _hashes(fields.get("block_hashes")), _group(fields)
    return "broken" if hashes is None or group is None else BlocksRemoved(hashes, tier, group)


def _tier(medium: Any, host_cpu: bool) -> Tier | Literal["pool", "medium"]:
    """Return the tier of a medium. Its case matters only for `cpu`."""
    if medium is None or medium == "GPU":
        return GPU
    if medium == "cpu" and not host_cpu:
        return "pool"
    return TIERS.get(medium.casefold(), "medium") if type(medium) is str else "medium"


def _group(fields: dict[str, Any]) -> int | None:
    group = fields.get("group_idx")
    return 0 if group is None else group if type(group) is int else None


def _hash(raw: Any) -> EngineHash | None:
    """Return unsigned 64 bits: of an int (a signed one folded), or the last 8 bytes of a digest."""
    if type(raw) is int:
        return EngineHash(raw & U64)
    if type(raw) is bytes and len(raw) >= 8:
        return EngineHash(int.from_bytes(raw[-8:], "big"))
    return None


def _hashes(raw: Any) -> list[EngineHash] | None:
    """Return `_hash` of each; `None` if one of them is invalid."""
    if type(raw) is not list:
        return None
    if len(raw) == 1 and type(raw[0]) is int and raw[0] >= 0:
        return cast("list[EngineHash]", raw)
    if raw and set(map(type, raw)) == ONLY_INTS and min(raw) >= 0:  # msgpack ints have at most 64 bits
        return cast("list[EngineHash]", raw)
    hashes = [known for value in raw if (known := _hash(value)) is not None]
    return hashes if len(hashes) == len(raw) else None


def _token_ids(raw: Any) -> array[int] | None:
    try:
        return array("I", raw) if type(raw) is list else None
    except (TypeError, OverflowError):
        return None


class _Extra(NamedTuple):
    salt: str | None
    extras: tuple[bytes, ...] | None


NO_EXTRA = _Extra(None, None)


def _extra_keys(raw: Any, blocks: int, adapter: str | None, *, root: bool) -> _Extra | None:
    """Return the values hashed beside tokens, per block and untagged: adapter name, media, salt, embeddings, in this
    order.

    The adapter has a field of its own; the salt can only be on a chain's first block. `None`: not understood.
    """
    if raw is None:
        return NO_EXTRA
    if type(raw) is not list or len(raw) != blocks:
        return None
    if not any(raw):
        return NO_EXTRA
    salt: str | None = None
    extras: list[bytes] = []
    for position, items in enumerate(raw):
        if not items:
            extras.append(b"")
            continue
        if type(items) is not list:
            return None
        rest = items[1:] if adapter is not None and items[0] == adapter else items
        if root and position == 0:
            salts = [item for item in rest if type(item) is str]
            salt = salts[-1] if salts else None
            rest = [item for item in rest if type(item) is not str] + salts[:-1]
        extras.append(msgspec.msgpack.encode(rest) if rest else b"")
    return _Extra(salt, tuple(extras) if any(extras) else None)
