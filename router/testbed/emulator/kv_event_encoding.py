"""KV events in vLLM's wire format, msgpack: the inverse of `backends/vllm/kv_events.py`.

A message's payload is `[ts, events, rank]`. Since vLLM 0.24 an event is a map that leaves out fields at their default;
before, it was an array with the tag first and every field in place. Both are encoded from the same table of fields, so
they carry the same facts. Source: vLLM distributed/kv_events.py, checked against recordings of 0.32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from router.kvcache.events import BlocksCleared, BlocksPooled, BlocksRemoved, BlocksStored, Event

Format = Literal["map", "array"]
Fields = dict[str, Any]

MEDIUM = "GPU"
POOL_MEDIUM = "cpu"
KIND = "full_attention"
ALWAYS = frozenset(
    ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
)  # in a map even when nil; the others are left out then

_encode = msgspec.msgpack.Encoder().encode


def encode_batch(
    events: Sequence[Event], wall_s: float, rank: int, *, form: Format, adapter_ids: Mapping[str, int]
) -> bytes:
    """Encode one message's payload. `adapter_ids` are the engine's own numbers for its LoRA adapters."""
    format_event = _FORMATS[form]
    return _encode([wall_s, [format_event(*_fields(event, adapter_ids)) for event in events], rank])


def _fields(event: Event, adapter_ids: Mapping[str, int]) -> tuple[str, Fields]:
    """Tag and fields of an event, in the order of the array format of 0.23."""
    match event:
        case BlocksStored():
            return "BlockStored", {
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": list(event.token_ids),
                "block_size": event.block_tokens,
                "lora_id": None if event.adapter is None else adapter_ids[event.adapter],
                "medium": MEDIUM,
                "lora_name": event.adapter,
                "extra_keys": _extra_keys(event),
                "group_idx": event.group,
                "kv_cache_spec_kind": KIND,
                "kv_cache_spec_sliding_window": None,
            }
        case BlocksRemoved():
            return "BlockRemoved", {"block_hashes": event.hashes, "medium": MEDIUM, "group_idx": event.group}
        case BlocksPooled():  # as MooncakeStoreConnector publishes it: no extra keys, no kind
            return "BlockStored", {
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": list(event.token_ids),
                "block_size": event.block_tokens,
                "lora_id": None,
                "medium": POOL_MEDIUM,
                "lora_name": None,
                "extra_keys": None,
                "group_idx": 0,
            }
        case BlocksCleared():
            return "AllBlocksCleared", {}


def _extra_keys(event: BlocksStored) -> list[list[str] | None]:
    """Extra keys by block: the adapter's name on each, the salt on the first of the chain."""
    each = [event.adapter] if event.adapter is not None else []
    keys: list[list[str] | None] = [each or None for _ in event.hashes]
    if event.salt is not None and keys:
        keys[0] = [*each, event.salt]
    return keys


def _map(tag: str, fields: Fields) -> Fields:
    return {"type": tag} | {name: value for name, value in fields.items() if value is not None or name in ALWAYS}


def _array(tag: str, fields: Fields) -> list[Any]:
    return [tag, *fields.values()]


_FORMATS: dict[Format, Callable[[str, Fields], Any]] = {"map": _map, "array": _array}
