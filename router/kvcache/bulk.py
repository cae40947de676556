"""Operations on many blocks at once: the tables that hold them, in Python.

If there is a C compiler, the same types and functions in C (`native/`) are installed beside this module and Python
imports those; `tests/router/kvcache/test_bulk.py` verifies that both behave alike. In C a block takes 21 to 34
bytes in each table, an event of 16 blocks costs 2 us in each, and no table is ever rehashed as a whole: the dict of
a million blocks stops the event loop for tens of milliseconds when it grows.

Keys and hashes are 60-bit numbers. A key out of that range raises OverflowError when it is stored, and has no
holder when it is looked up; only the low 60 bits of a hash count.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import or_
from sys import getsizeof

import msgspec
from xxhash import xxh3_64_intdigest

SHORT = (1 << 60) - 1  # two of CPython's digits
HOLDER_BYTES = 100  # per entry of a HolderTable; 27 in C
LEAST_CHAINED_BYTES, MOST_CHAINED_BYTES = 9, 232  # of the token ids of a block in `chain_keys`
_decode_ids = msgspec.msgpack.Decoder(list[int] | None).decode
_ONLY_INTS = {int}
_U64 = (1 << 64) - 1
_INT_BYTES = 32  # a CPython int of 31 to 60 bits


class KeyTable:
    """One target's blocks in one tier and group: engine hash -> key; None for an orphan, whose chain is unknown."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[int, int | None] = {}

    def get(self, hash_: int) -> int | None:
        """Return the key of a block; None for an orphan or a block that is not held."""
        return self._keys.get(hash_ & SHORT)

    def set(self, hash_: int, key: int | None) -> None:
        """Add a block, or change its key. Raises OverflowError for a key beyond 60 bits."""
        _check_keys([] if key is None else [key])
        self._keys[hash_ & SHORT] = key

    def is_new(self, hashes: list[int]) -> bool:
        """Return whether none of `hashes` is held."""
        return self._keys.keys().isdisjoint([hash_ & SHORT for hash_ in hashes])

    def add_new(self, hashes: list[int], keys: list[int]) -> bool:
        """Add blocks that are not held, with their keys. Return False, and add none, if one is already held or
        occurs twice. Raises ValueError for lists of different lengths, OverflowError for a key beyond 60 bits.
        """
        _check_keys(keys)
        if len(hashes) != len(keys):
            raise ValueError(f"{len(hashes)} hashes with {len(keys)} keys")
        labels = [hash_ & SHORT for hash_ in hashes]
        if len(set(labels)) != len(labels) or not self._keys.keys().isdisjoint(labels):
            return False
        self._keys.update(zip(labels, keys, strict=True))
        return True

    def take(self, hashes: list[int]) -> list[int]:
        """Remove blocks. Return the keys of the removed blocks that had one, in the order of `hashes`."""
        labels = [hash_ & SHORT for hash_ in hashes]
        return [key for label in labels if (key := self._keys.pop(label, None)) is not None]

    def take_some(self, most: int) -> list[int]:
        """Remove any blocks, up to `most`. Return the keys of those that had one."""
        labels = list(islice(reversed(self._keys), max(0, most)))
        return [key for label in labels if (key := self._keys.pop(label)) is not None]

    def save(self) -> tuple[bytes, bytes, bytes]:
        """Return the hashes of the blocks with keys, their keys, and the hashes of orphans: 64 bits each."""
        known = {hash_: key for hash_, key in self._keys.items() if key is not None}
        orphans = (hash_ for hash_, key in self._keys.items() if key is None)
        return _raw(known), _raw(known.values()), _raw(orphans)

    def __contains__(self, hash_: int) -> bool:
        return hash_ & SHORT in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + getsizeof(self._keys) + _INT_BYTES * len(self._keys)


class HolderTable:
    """The targets that hold each block in one tier: key -> one bit per target. Every key has at least one bit.

    A block with one holder has that target's own bit object as its value, so the most common case allocates
    nothing.
    """

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}

    def bits(self, key: int) -> int:
        """Return the bits of the targets that hold a block; 0 if none does."""
        return self._bits.get(key, 0)

    def add(self, keys: list[int], bit: int) -> list[int]:
        """Record that `bit`, a power of two, holds `keys`. Return the keys that `bit` did not hold before. Raises
        OverflowError, and records nothing, for a key beyond 60 bits.
        """
        _check_keys(keys)
        if self._bits.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            self._bits.update(zip(keys, repeat(bit)))
            return list(keys)
        entered = []
        for key in keys:
            bits = self._bits.get(key, 0)
            if not bits & bit:
                self._bits[key] = bits | bit if bits else bit
                entered.append(key)
        return entered

    def clear(self, keys: list[int], bit: int) -> None:
        """Record that `bit` no longer holds `keys`. Raises OverflowError for a key beyond 60 bits."""
        _check_keys(keys)
        for key in keys:
            bits = self._bits.get(key, 0)
            if bits == bit:
                del self._bits[key]
            elif bits & bit:
                self._bits[key] = bits ^ bit

    def bisect(self, keys: Sequence[int], bits: int) -> dict[int, int]:
        """Return the number of leading blocks, by group of bits that hold equally many; bits that hold none are
        absent. Correct only for targets that hold no block without its predecessor.

        One look-up per halving and per group of targets that has not split: 200 ns each, 50 ns in C.
        """
        lookup = self._bits.get
        runs: dict[int, int] = {}
        pending = [(0, len(keys), bits)] if bits else []  # these bits hold `low` blocks at least and `high` at most
        while pending:
            low, high, bits = pending.pop()
            while low < high:
                middle = (low + high) >> 1
                further = lookup(keys[middle], 0) & bits
                if further == bits:
                    low = middle + 1
                else:
                    if further:
                        pending.append((middle + 1, high, further))
                        bits ^= further
                    high = middle
            if low:
                runs[bits] = low
        return runs

    def walk(self, keys: Sequence[int], bits: int, slower: tuple[HolderTable, ...]) -> dict[int, int]:
        """Return the number of leading blocks in this tier or one of `slower`, grouped as in `bisect`; correct
        whatever the targets hold. 50 ns per block.
        """
        holding: Iterator[int] = map(self._bits.get, keys, repeat(0))
        for table in slower:
            holding = map(or_, holding, map(table._bits.get, keys, repeat(0)))
        return _leading_runs(holding, bits, len(keys))

    def __len__(self) -> int:
        return len(self._bits)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + getsizeof(self._bits) + _INT_BYTES * len(self._bits)


def pack_low_words(keys: list[int]) -> bytes:
    """Return the low 32 bits of each key, in native byte order. Raises OverflowError for a key beyond 60 bits."""
    _check_keys(keys)
    return array("I", [key & 0xFFFF_FFFF for key in keys]).tobytes()


def chain_keys(parent: int, ids: array[int], width: int, secret: int) -> list[int]:
    """Return the keys of the full blocks of `ids`, each of `width` bytes, that follow `parent`, without extras; see
    `block_keys.Keyring.chain`. Raises ValueError for a width out of `LEAST_CHAINED_BYTES` to `MOST_CHAINED_BYTES`,
    OverflowError for a parent beyond 60 bits or a secret beyond 64.
    """
    _check_keys([parent])
    if not 0 <= secret < 1 << 64:
        raise OverflowError("a secret has 64 bits")
    if not LEAST_CHAINED_BYTES <= width <= MOST_CHAINED_BYTES:
        raise ValueError(f"blocks of {width} bytes")
    raw = memoryview(ids).cast("B")
    keys: list[int] = []
    key = parent
    for start in range(0, len(raw) - width + 1, width):
        key = xxh3_64_intdigest(key.to_bytes(8, "little") + raw[start : start + width], secret) & SHORT
        keys.append(key)
    return keys


def unpack_ids(packed: msgspec.Raw | bytes) -> bytes | None:
    """Return the token ids of a msgpack array as 32-bit numbers in native byte order, empty for nil; None if
    `packed` is anything else, or an id has more than 32 bits.
    """
    try:
        ids = _decode_ids(packed)
        return b"" if ids is None else array("I", ids).tobytes()
    except (ValueError, OverflowError):  # msgspec's errors are ValueErrors
        return None


def fold_hashes(raw: object) -> list[int] | None:
    """Return the block hashes of a list as unsigned 64-bit numbers: an int itself (folded if negative), or the last
    8 bytes of a digest. None if one is anything else or `raw` is not a list. Returns `raw` itself if nothing
    changes.
    """
    if type(raw) is not list:
        return None
    if not raw or (set(map(type, raw)) == _ONLY_INTS and 0 <= min(raw) <= max(raw) <= _U64):
        return raw
    folded = [known for each in raw if (known := _fold(each)) is not None]
    return folded if len(folded) == len(raw) else None


def _fold(raw: object) -> int | None:
    if type(raw) is int:
        return raw & _U64
    return int.from_bytes(raw[-8:], "big") if type(raw) is bytes and len(raw) >= 8 else None


def _leading_runs(holding: Iterable[int], alive: int, length: int) -> dict[int, int]:
    """Return the number of leading blocks by group of bits of `alive`, given each block's holders in turn."""
    runs: dict[int, int] = {}
    if not alive or not length:
        return runs
    for position, bits in enumerate(holding):
        if alive & bits != alive:
            if position:
                runs[alive & ~bits] = position
            alive &= bits
            if not alive:
                return runs
    runs[alive] = length
    return runs


def _check_keys(keys: list[int]) -> None:
    if keys and not 0 <= min(keys) <= max(keys) <= SHORT:
        raise OverflowError("a key has 60 bits")


def _raw(numbers: Iterable[int]) -> bytes:
    return array("Q", numbers).tobytes()
