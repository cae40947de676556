"""The shapes of vLLM's KV event messages, for msgspec, and decoders of messages and of their parts."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw


class EventFields(msgspec.Struct, gc=False):
    """The fields that are read from an event of any type."""

    type: Any = None
    block_hashes: Any = None
    parent_block_hash: Any = None
    token_ids: Any = None
    block_size: Any = None
    lora_id: Any = None
    medium: Any = None
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: Any = None
    kv_cache_spec_kind: Any = None
    kv_cache_spec_sliding_window: Any = None
    locality: Any = None


class PackedFields(EventFields, gc=False):
    """The fields of an event with token ids still encoded: creating 256 ints takes half of the time of an event of
    16 blocks.
    """

    token_ids: Raw = Raw(b"\xc0")


class _Message(msgspec.Struct, array_like=True):
    stamp: Any
    events: list[Raw]
    rank: Any = None


class _MessageOfMaps(msgspec.Struct, array_like=True):
    stamp: Any
    events: list[PackedFields]
    rank: Any = None


unpack = msgspec.msgpack.Decoder().decode
unpack_maps = msgspec.msgpack.Decoder(_MessageOfMaps).decode  # a message
unpack_event_map = msgspec.msgpack.Decoder(PackedFields).decode
find_events = msgspec.msgpack.Decoder(_Message).decode  # a message, with undecoded events
unpack_map = msgspec.msgpack.Decoder(dict[str, Raw]).decode
unpack_array = msgspec.msgpack.Decoder(list[Raw]).decode
unpack_ints = msgspec.msgpack.Decoder(list[int]).decode
unpack_hashes = msgspec.msgpack.Decoder(list[int | bytes]).decode
