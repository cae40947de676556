"""The engines' own block hashes, byte for byte: needed to compute key names in the shared pool, and to recognise
the blocks of a prompt whose events were missed.

    digest[-1] = H(seed)
    digest[i]  = H((digest[i-1], token ids of block i, extras of block i or None))

H is one of vLLM's `--prefix-caching-hash-algo`: SHA-256 or XXH3-128, over the value's pickle or its canonical CBOR
(`protocol.md` 3; vllm v1/core/kv_cache_utils.py). Extras are the adapter, and on the chain's first block the salt;
prompts with media are not supported. The hash of any first block shows an engine's parameters (`fits`).
"""

from __future__ import annotations

import hashlib
import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import get_args

from xxhash import xxh3_128_digest

from router.config.sections.pool import HashAlgo
from router.kvcache.events import BlocksStored, EngineHash

Digest = bytes
Adapter = tuple[str, str]  # a LoRA's name and the path that the engine loaded it from
Extras = tuple[str | tuple[str, ...], ...]

DEFAULT_SEED = "vllm-none-hash"  # the SHA-256 algorithms use it when PYTHONHASHSEED is not set
SEEDS = (None, "0", "1", "42", "123", "1234", "random")  # usual values of PYTHONHASHSEED
CACHED_IDS = 1 << 18  # larger than any vocabulary; larger ids are encoded every time


class EngineChain:
    """One way in which engines hash blocks. Two chains with the same parameters are equal."""

    def __init__(self, algo: HashAlgo, seed: str = DEFAULT_SEED, tagged: bool = True) -> None:
        self.algo: HashAlgo = algo
        self.seed = seed
        self.tagged = tagged  # since vLLM 0.31 extras carry a tag and the adapter's path
        self._hash: Callable[[bytes], Digest] = xxh3_128_digest if algo.startswith("xxhash") else _sha256
        cbor = _Cbor()
        self._serialize: Callable[[_HashInput], bytes] = cbor.block if algo.endswith("cbor") else _pickle
        self.root: Digest = self._hash(cbor.text(seed) if algo.endswith("cbor") else _pickle(seed))

    @classmethod
    def from_config(cls, algo: HashAlgo, seed: str | None = None, tagged: bool = True) -> EngineChain | None:
        """Return the chain of engines whose PYTHONHASHSEED is `seed` (None: not set). None if the chain cannot be
        computed: without a seed, xxhash starts from random bytes in every process.
        """
        if seed is None and algo.startswith("xxhash"):
            return None
        return cls(algo, DEFAULT_SEED if seed is None else seed, tagged)

    def chain(
        self,
        parent: Digest | None,
        token_ids: array[int] | Sequence[int],
        block_tokens: int,
        adapter: Adapter | None = None,
        salt: str | None = None,
    ) -> list[Digest]:
        """Return the digests (32 bytes; xxhash 16) of the full blocks of `token_ids` that follow `parent`.

        With `parent` None a chain begins; only its first block includes the salt. 2 us per block of 16 tokens by
        pickle, 3 us by CBOR, plus 0.4 us for each token id that CBOR encodes for the first time.
        """
        extras = self._extras(adapter, salt if parent is None else None)
        rest = self._extras(adapter, None)
        digest, digests = self.root if parent is None else parent, []
        hash, serialize = self._hash, self._serialize
        for end in range(block_tokens, len(token_ids) + 1, block_tokens):
            digest = hash(serialize((digest, tuple(token_ids[end - block_tokens : end]), extras)))
            digests.append(digest)
            extras = rest
        return digests

    @staticmethod
    def event_hash(digest: Digest) -> EngineHash:
        """Return the digest as events carry it: its last 8 bytes, big endian."""
        return EngineHash(int.from_bytes(digest[-8:], "big"))

    def _extras(self, adapter: Adapter | None, salt: str | None) -> Extras | None:
        """Return the values hashed besides a block's tokens; None if none. An empty salt counts as none."""
        extras: Extras = ()
        if adapter is not None:
            name, path = map(_copy_text, adapter)
            extras += (("lora", name, path) if self.tagged else name,)
        if salt:
            extras += (("cache_salt", _copy_text(salt)) if self.tagged else _copy_text(salt),)
        return extras or None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineChain) and self._parameters == other._parameters

    def __hash__(self) -> int:
        return hash(self._parameters)

    def __repr__(self) -> str:
        return f"EngineChain({self.algo}, seed {self.seed!r}, {'tagged' if self.tagged else 'bare'})"

    @property
    def _parameters(self) -> tuple[str, str, bool]:
        return self.algo, self.seed, self.tagged


def list_chains(
    algos: Sequence[HashAlgo] = get_args(HashAlgo), seeds: Iterable[str | None] = SEEDS
) -> Iterator[EngineChain]:
    """Yield the chains of all combinations that can be computed, the likeliest seeds first."""
    for seed in seeds:
        for algo in algos:
            for tagged in (True, False):
                if (chain := EngineChain.from_config(algo, seed, tagged)) is not None:
                    yield chain


def is_comparable(event: BlocksStored) -> bool:
    """Return whether an event shows everything that its engine hashed for the first block: neither an adapter,
    whose path it lacks, nor media.
    """
    return event.adapter is None and bool(event.hashes) and not (event.extras is not None and event.extras[0])


def fits(chain: EngineChain, event: BlocksStored, unit: int | None = None) -> bool:
    """Return whether `chain` gives the hash under which an engine stored a prompt's first block, without adapter
    and media. `unit`: the tokens that the engine hashes at once; None: a block.
    """
    size = event.block_tokens
    first = chain.chain(None, event.token_ids[:size], size if unit is None else min(unit, size), salt=event.salt)
    return [chain.event_hash(digest) for digest in first[-1:]] == event.hashes[:1]


_HashInput = tuple[Digest, tuple[int, ...], Extras | None]

_pickle = partial(pickle.dumps, protocol=5)


def _sha256(data: bytes) -> Digest:
    return hashlib.sha256(data).digest()


def _copy_text(text: str) -> str:
    """Return an equal string as a separate object: pickle writes an object that it meets again as a reference, and
    in an engine these strings come from different places.
    """
    return (text + " ")[:-1]


class _Cbor(dict[int, bytes]):
    """Canonical CBOR (RFC 8949 4.2.1) of the hashed values. As a dict it caches token ids: a tenth of the time."""

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Extras | None, bytes] = (None, b"\xf6")  # an adapter is in every block of a chain

    def __missing__(self, token_id: int) -> bytes:
        encoded = _item_head(0, token_id)
        if token_id < CACHED_IDS:
            self[token_id] = encoded
        return encoded

    def block(self, value: _HashInput) -> bytes:
        parent, token_ids, extras = value
        if extras is not self._last[0]:
            self._last = (extras, b"\xf6" if extras is None else self._array(extras))
        ids = b"".join(map(self.__getitem__, token_ids))
        chained = b"\x83" + _cached_item_head(2, len(parent)) + parent
        return chained + _cached_item_head(4, len(token_ids)) + ids + self._last[1]

    def text(self, text: str) -> bytes:
        raw = text.encode("utf-8", "surrogatepass")  # JSON can carry lone surrogates
        return _item_head(3, len(raw)) + raw

    def _array(self, items: Extras | tuple[str, ...]) -> bytes:
        encoded = (self.text(item) if isinstance(item, str) else self._array(item) for item in items)
        return _item_head(4, len(items)) + b"".join(encoded)


def _item_head(major: int, number: int) -> bytes:
    """Return a CBOR item's head: its major type and its value or length (up to 2**32 - 1), as short as possible."""
    kind = major << 5
    if number < 24:
        return bytes((kind | number,))
    if number < 1 << 8:
        return bytes((kind | 24, number))
    if number < 1 << 16:
        return bytes((kind | 25,)) + number.to_bytes(2, "big")
    return bytes((kind | 26,)) + number.to_bytes(4, "big")


_cached_item_head = lru_cache(maxsize=64)(_item_head)  # only a few different lengths occur
