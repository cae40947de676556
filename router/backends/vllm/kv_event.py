"""One of vLLM's KV events: decodes its fields into a domain event, or states why it carries no token blocks.

Events are maps since vLLM 0.24 and arrays before; both are read untyped, because a typed decoder loses the whole
batch for one unknown event. Events without token blocks of this rank are skipped and counted by reason, never an
error:

    unknown      an unknown type                           broken    fields of the wrong type, that do not fit, or that
    pool         a removal from the shared store                     are out of bounds
    group        of a kind that is not indexed (a window   medium    an unknown storage medium
                 of unknown size, tails in slower tiers)   adapter   a LoRA without its name (vLLM < 0.16)
    chunked      of chunked local attention: what an       remote    on storage that instances share: who publishes
                 engine re-uses of it is unknown                     the event does not own the block
    length       tokens and hashes do not line up
                 (masked groups)                           placeholder  hashes without tokens (offload tiers)

`"cpu"` in lower case is the shared pool (MooncakeStoreConnector), or the instance's host memory if the operator
configures it so (`host_cpu`; LMCache uses the same word). Removals do not state their group's kind, so those of groups
that are not indexed pass, too; the index ignores them. This module does not depend on targets, order or keys.
"""

from __future__ import annotations

from array import array
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Raw

from router.backends.vllm.kv_event_format import EventFields
from router.fleet.engine_limits import MAX_BLOCK_TOKENS, NAME_CHARS
from router.kvcache.bulk import fold_hashes, unpack_ids
from router.kvcache.events import (
    BlockEvent,
    BlocksCleared,
    BlocksPooled,
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    EventBatch,
    TailsStored,
    Tier,
)

Skipped = Literal[
    "unknown", "broken", "pool", "medium", "group", "chunked", "adapter", "placeholder", "length", "remote"
]

PIECE_BLOCKS = 2048  # an event with more blocks is cut into several, each of which is applied in 2 ms
MAX_GROUPS = 64  # KV cache groups of one rank; a model has a handful
EXTRA_BYTES = 4096  # hashed with the tokens of one block: ids of some images, an adapter's name

# Array events: the tag, then these fields in order; older versions stop earlier.
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
        "kv_cache_spec_sliding_window",
        "locality",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality"),
    "AllBlocksCleared": (),
}
NAMES = frozenset(name for names in FIELDS.values() for name in names)
WINDOW_KINDS = ("sliding_window", "sliding_window_mla")
STATE_KIND = "mamba"
CHUNKED_KIND = "chunked_local_attention"
MAX_WINDOW_TOKENS = 1 << 20
FULL_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention")
GPU = Tier.GPU
TIERS = {"gpu": Tier.GPU, "cpu": Tier.CPU, "storage": Tier.DISK}


class EventReader:
    """Reads the events of one message, in order, into the lists of its batch."""

    def __init__(self, batch: EventBatch, host_cpu: bool) -> None:
        self._events = batch.events
        self._skipped = batch.skipped
        self._host_cpu = host_cpu
        self._last_removed: list[EngineHash] | None = None  # of the last event; None: it was no removal
        self._last_tier = GPU
        self._last_group = 0

    def read(self, raw: Any) -> None:
        """Add the event in `raw`, which is a decoded event, typed or untyped, or count why it is skipped."""
        if isinstance(raw, EventFields):
            self.read_fields(raw)
        elif type(raw) is dict:
            self.read_fields(EventFields(raw.get("type"), **{name: raw[name] for name in NAMES if name in raw}))
        elif type(raw) is list and raw and type(raw[0]) is str:
            named = zip(FIELDS.get(raw[0], ()), raw[1:], strict=False)  # older: fewer fields; newer: more fields
            self.read_fields(EventFields(raw[0], **dict(named)))
        else:
            self.skip("broken")

    def read_fields(self, fields: EventFields) -> None:
        """Add the event with these fields, in pieces if it has more than `PIECE_BLOCKS` blocks."""
        kind = fields.type
        if kind == "BlockStored":
            stored = _stored(fields, self._host_cpu)
            if isinstance(stored, str):
                self.skip(stored)
            else:
                self._add(stored)
        elif kind == "BlockRemoved":
            self._remove(fields)
        elif kind == "AllBlocksCleared":
            self._events.append(BlocksCleared())
            self._last_removed = None
        else:
            self.skip("unknown")

    def skip(self, why: Skipped) -> None:
        """Count an event that is not added."""
        self._skipped[why] = self._skipped.get(why, 0) + 1

    def _remove(self, fields: EventFields) -> None:
        """Add a removal. Adjacent removals are merged, at half the cost: vLLM sends one per evicted block."""
        tier = _tier(fields, self._host_cpu)
        if isinstance(tier, str):
            self.skip(tier)
            return
        hashes, group, last = _hashes(fields.block_hashes), _group(fields), self._last_removed
        if hashes is None or group is None:
            self.skip("broken")
        elif (
            last is not None
            and tier is self._last_tier
            and group == self._last_group
            and len(last) + len(hashes) <= PIECE_BLOCKS
        ):
            last.extend(hashes)
        else:
            self._add(BlocksRemoved(hashes, tier, group))

    def _add(self, event: BlockEvent) -> None:
        if len(event.hashes) <= PIECE_BLOCKS:
            self._events.append(event)
        else:
            self._events.extend(_cut(event))
        last = self._events[-1]
        if isinstance(last, BlocksRemoved):
            self._last_removed, self._last_tier, self._last_group = last.hashes, last.tier, last.group
        else:
            self._last_removed = None


def _cut(event: BlockEvent) -> list[BlockEvent]:
    """Return the same event as several of up to `PIECE_BLOCKS` blocks, each the child of the previous one."""
    pieces: list[BlockEvent] = []
    for start in range(0, len(event.hashes), PIECE_BLOCKS):
        end = start + PIECE_BLOCKS
        hashes = event.hashes[start:end]
        if isinstance(event, BlocksRemoved | TailsStored):
            pieces.append(event._replace(hashes=hashes))
            continue
        parent = event.hashes[start - 1] if start else event.parent
        token_ids = event.token_ids[start * event.block_tokens : end * event.block_tokens]
        if isinstance(event, BlocksPooled):
            pieces.append(event._replace(hashes=hashes, parent=parent, token_ids=token_ids))
            continue
        salt, extras = None if start else event.salt, None if event.extras is None else event.extras[start:end]
        pieces.append(event._replace(hashes=hashes, parent=parent, token_ids=token_ids, salt=salt, extras=extras))
    return pieces


def _stored(fields: EventFields, host_cpu: bool) -> BlocksStored | TailsStored | BlocksPooled | Skipped:
    tier = _tier(fields, host_cpu)
    if tier == "pool":
        return _pooled(fields)
    if isinstance(tier, str):
        return tier
    if fields.kv_cache_spec_kind not in FULL_ATTENTION:
        return _tails(fields) if tier is GPU else "group"
    block_tokens, token_ids = fields.block_size, _token_ids(fields.token_ids)
    if not block_tokens or (token_ids is not None and not token_ids):
        return "placeholder"
    hashes, group = _hashes(fields.block_hashes), _group(fields)
    if hashes is None or token_ids is None or group is None or not _is_block_size(block_tokens):
        return "broken"
    if len(token_ids) != block_tokens * len(hashes):
        return "length"
    raw_parent, adapter = fields.parent_block_hash, fields.lora_name
    parent = None if raw_parent is None else _hash(raw_parent)
    if (parent is None and raw_parent is not None) or not _is_name(adapter):
        return "broken"
    extra = _extra_keys(fields.extra_keys, len(hashes), adapter, root=raw_parent is None)
    if extra is None:
        return "broken"
    if adapter is None and fields.lora_id is not None:
        return "adapter"
    return BlocksStored(hashes, parent, token_ids, block_tokens, tier, group, adapter, extra.salt, extra.extras)


def _tails(fields: EventFields) -> TailsStored | Skipped:
    """Decode blocks of a sliding window, or states of Mamba. The event's tokens are those of the whole step, so they do
    not show where its blocks are. Even an event without blocks shows that there is such a group.
    """
    kind, window = fields.kv_cache_spec_kind, fields.kv_cache_spec_sliding_window
    hashes, block_tokens, group = _hashes(fields.block_hashes), fields.block_size, _group(fields)
    leading = kind != STATE_KIND
    if kind == CHUNKED_KIND:
        return "chunked"
    if leading and (kind not in WINDOW_KINDS or window is None):
        return "group"
    if hashes is None or group is None or not _is_block_size(block_tokens):
        return "broken"
    need = 1
    if leading:
        if type(window) is not int or not 0 < window <= MAX_WINDOW_TOKENS:
            return "broken"
        need = max(1, -(-(window - 1) // block_tokens))
    token_ids = _token_ids(fields.token_ids)
    whole = token_ids is not None and len(token_ids) == block_tokens * len(hashes)
    from_start = whole and fields.parent_block_hash is None
    return TailsStored(hashes, group, block_tokens, need, leading, from_start)


def _pooled(fields: EventFields) -> BlocksPooled | Skipped:
    """Decode blocks that were put into the pool. Tokens may be missing: the hashes suffice (`protocol.md` 6.6)."""
    hashes, token_ids = _hashes(fields.block_hashes), _token_ids(fields.token_ids)
    raw_parent, block_tokens = fields.parent_block_hash, fields.block_size
    parent = None if raw_parent is None else _hash(raw_parent)
    if not block_tokens:
        return "placeholder"
    if hashes is None or token_ids is None or not _is_block_size(block_tokens):
        return "broken"
    if (parent is None and raw_parent is not None) or len(token_ids) not in (0, block_tokens * len(hashes)):
        return "broken"
    return BlocksPooled(hashes, parent, token_ids, block_tokens)


def _tier(fields: EventFields, host_cpu: bool) -> Tier | Literal["pool", "medium", "remote"]:
    """Return the tier of an event's medium, whose case matters only for `cpu`."""
    medium = fields.medium
    if medium is None or medium == "GPU":
        return GPU
    if medium == "cpu" and not host_cpu:
        return "pool"
    tier = TIERS.get(medium.casefold()) if type(medium) is str else None
    if tier is None:
        return "medium"
    return "remote" if tier is Tier.DISK and fields.locality == "REMOTE" else tier


def _group(fields: EventFields) -> int | None:
    group = fields.group_idx
    return 0 if group is None else group if type(group) is int and 0 <= group < MAX_GROUPS else None


def _is_block_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_BLOCK_TOKENS


def _is_name(value: Any) -> bool:
    return value is None or (type(value) is str and len(value) <= NAME_CHARS)


def _hash(raw: Any) -> EngineHash | None:
    folded = _hashes([raw])
    return None if folded is None else folded[0]


def _hashes(raw: Any) -> list[EngineHash] | None:
    return cast("list[EngineHash] | None", fold_hashes(raw))


def _token_ids(raw: Any) -> array[int] | None:
    """Return the ids, an empty array for null; None if they are invalid."""
    if type(raw) is Raw:
        packed = unpack_ids(raw)
        return None if packed is None else array("I", packed)
    if raw is None:
        return array("I")
    try:
        return array("I", raw) if type(raw) is list else None
    except (TypeError, OverflowError):
        return None


class _Extra(NamedTuple):
    salt: str | None
    extras: tuple[bytes, ...] | None


NO_EXTRA = _Extra(None, None)


def _extra_keys(raw: Any, blocks: int, adapter: str | None, *, root: bool) -> _Extra | None:
    """Return the values hashed with the tokens, per block and untagged: adapter name, media, salt, embeddings, in
    this order.

    The adapter has a field of its own; the salt can only be on a chain's first block. None: not understood.
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
        extra = msgspec.msgpack.encode(rest) if rest else b""
        if len(extra) > EXTRA_BYTES:
            return None
        extras.append(extra)
    return _Extra(salt, tuple(extras) if any(extras) else None)
