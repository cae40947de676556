"""KV events made up for the benchmark of the index: the same events for our index and for a peer.

64 targets serve agents. Each target's cache is chains of up to 5,000 blocks, announced in events of 16 blocks, and
targets take turns. A block has the same engine hash at every target: Dynamo's index refuses anything else. Standard
library only: the peer's process runs it too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

TARGETS = 64
EVENT_BLOCKS = 16
CHAIN_BLOCKS = 5_000
ODD = 0x9E37_79B9_7F4A_7C15  # makes an engine's hash of a key
KEY = (1 << 60) - 1  # by this operation, as our keys are: other ways leave CPython's ints larger
SHARED_BLOCKS = 500  # that all chains of a shared story begin with: one agent's instructions and tools


class StoredRun(NamedTuple):
    """Consecutive blocks at one target: the engine's hashes, our keys, and the hash before them."""

    target: int
    parent: int | None
    hashes: list[int]
    keys: list[int]


class Part(NamedTuple):
    """A chain of which one target holds the first `blocks` blocks."""

    target: int
    chain: int
    blocks: int


def apart(blocks: int, chain_blocks: int = CHAIN_BLOCKS) -> list[Part]:
    """Return parts of exactly `blocks` blocks in all, with no chain at two targets."""
    parts, chain = [], 0
    for target in range(TARGETS):
        left = blocks // TARGETS + (target < blocks % TARGETS)
        while left:
            parts.append(Part(target, chain, min(left, chain_blocks)))
            left -= parts[-1].blocks
            chain += 1
    return parts


def spread(blocks: int, seed: int = 1) -> list[Part]:
    """Return parts of about `blocks` blocks in all: each chain at every target, at different depths. Hard to match."""
    dice = random.Random(seed)
    parts: list[Part] = []
    held = chain = 0
    while held < blocks:
        new = [Part(target, chain, dice.randrange(1, CHAIN_BLOCKS + 1)) for target in range(TARGETS)]
        held += sum(part.blocks for part in new)
        parts += new
        chain += 1
    return parts


def sessions(blocks: int, seed: int = 1) -> list[Part]:
    """Return parts of about `blocks` blocks in all: each chain whole at one target, to some depth at two others.

    All chains share their first blocks (see `keys_of`).
    """
    dice = random.Random(seed)
    parts: list[Part] = []
    held = chain = 0
    while held < blocks:
        homes = dice.sample(range(TARGETS), 3)
        depths = [CHAIN_BLOCKS, *(dice.randrange(SHARED_BLOCKS, CHAIN_BLOCKS) for _ in range(2))]
        parts += [Part(target, chain, depth) for target, depth in zip(homes, depths, strict=True)]
        held += sum(depths)
        chain += 1
    return parts


def keys_of(chain: int, shared: bool, blocks: int = CHAIN_BLOCKS) -> list[int]:
    """Keys of a chain."""
    common = random.Random("shared")
    own = random.Random(f"chain {chain}")
    first = [common.getrandbits(64) & KEY for _ in range(SHARED_BLOCKS)] if shared else []
    return [*first, *(own.getrandbits(64) & KEY for _ in range(blocks - len(first)))][:blocks]


def make_runs(parts: list[Part], shared: bool = False) -> Iterator[StoredRun]:
    """Yield all events, targets in turns."""
    of_target = [[part for part in parts if part.target == target] for target in range(TARGETS)]
    for turn in zip_longest(*(_runs_of_one(parts, shared) for parts in of_target)):
        yield from (event for event in turn if event is not None)


def _runs_of_one(parts: list[Part], shared: bool) -> Iterator[StoredRun]:
    """Yield the events of one target; blocks of a shared prefix that it holds already are not announced again."""
    for number, part in enumerate(parts):
        keys = keys_of(part.chain, shared, part.blocks)
        hashes = [key * ODD % (1 << 64) for key in keys]
        start = SHARED_BLOCKS if shared and number else 0
        for first in range(start, len(keys), EVENT_BLOCKS):
            new = slice(first, first + EVENT_BLOCKS)
            yield StoredRun(part.target, hashes[first - 1] if first else None, hashes[new], keys[new])
