"""The block hashes a vLLM engine announces: its own chain, byte for byte as its `sha256` algorithm makes it.

    digest[-1] = sha256(pickle("vllm-none-hash"))            (or of PYTHONHASHSEED, when that is set)
    digest[i]  = sha256(pickle((digest[i-1], tokens of block i, extras of block i or None)))

and the label on the wire is the last 8 bytes of a digest. Emulated engines could use any chain, since routers must not
care; using the real one lets recordings of real engines be compared to the last bit (vllm v1/core/kv_cache_utils.py).
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence

from router.blocks.events import EngineHash

Digest = bytes
Extras = tuple[tuple[str, ...], ...] | None

SEED = "vllm-none-hash"


def root(seed: str = SEED) -> Digest:
    """What the first block's hash is chained to."""
    return hashlib.sha256(pickle.dumps(seed, protocol=5)).digest()


def block(parent: Digest, token_ids: Sequence[int], extras: Extras) -> Digest:
    """The digest of one full block."""
    return hashlib.sha256(pickle.dumps((parent, tuple(token_ids), extras), protocol=5)).digest()


def label(digest: Digest) -> EngineHash:
    """The digest as KV events carry it: an unsigned 64-bit number."""
    return EngineHash(int.from_bytes(digest[-8:], "big"))


def extras(index: int, adapter: tuple[str, str] | None, salt: str | None) -> Extras:
    """What block `index` hashes beside its tokens: the LoRA adapter (name, path), and on the first block the salt."""
    found: tuple[tuple[str, ...], ...] = ()
    if adapter is not None:
        found += (("lora", *adapter),)
    if salt is not None and index == 0:
        found += (("cache_salt", salt),)
    return found or None
