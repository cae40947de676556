"""The index again, by brute force: what `index.py` must answer in every state.

Everything is written out: a block's whole path of tokens instead of a chained key, a walk per target instead of bits,
a search until nothing changes instead of waiting lists, and nothing is bounded. Too slow to use, short enough to
believe. Tests hold the two together over random stories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from router.kvcache.block_keys import Keyring
from router.kvcache.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    EngineHash,
    Key,
    TargetId,
    Tier,
)
from router.kvcache.index import HeldBlocks


class Path(NamedTuple):
    """A block by all that precedes it."""

    root: Key
    block_tokens: int
    token_ids: tuple[int, ...]
    extras: tuple[bytes, ...]

    def then(self, token_ids: Sequence[int], extra: bytes) -> Path:
        return self._replace(token_ids=(*self.token_ids, *token_ids), extras=(*self.extras, extra))

    @property
    def before(self) -> Path:
        return self._replace(token_ids=self.token_ids[: -self.block_tokens], extras=self.extras[:-1])


class _Shelf:
    def __init__(self, model: str) -> None:
        self.model = model
        self.copies: Counter[tuple[Tier, int, EngineHash]] = Counter()
        self.paths: dict[tuple[int, EngineHash], Path] = {}
        self.waiting: list[BlocksStored] = []


class NaiveIndex:
    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._shelves: dict[TargetId, _Shelf] = {}

    def join(self, target: TargetId, model: str) -> None:
        self._shelves[target] = _Shelf(model)

    def leave(self, target: TargetId) -> None:
        self._shelves.pop(target, None)

    def forget(self, target: TargetId) -> None:
        self.join(target, self._shelves[target].model)

    def apply(self, target: TargetId, event: CacheEvent) -> None:
        shelf = self._shelves[target]
        match event:
            case BlocksStored():
                shelf.copies.update((event.tier, event.group, hash_) for hash_ in event.hashes)
                shelf.waiting.append(event)
                while any(self._placed(shelf, waiting) for waiting in list(shelf.waiting)):
                    pass
            case BlocksRemoved():
                for hash_ in event.hashes:
                    if shelf.copies[event.tier, event.group, hash_] > 0:
                        shelf.copies[event.tier, event.group, hash_] -= 1
                    if not self._cached(shelf, event.group, hash_):
                        shelf.paths.pop((event.group, hash_), None)
            case BlocksCleared():
                self.forget(target)

    def _placed(self, shelf: _Shelf, event: BlocksStored) -> bool:
        path: Path | None
        if event.parent is None:
            root = self._keyring.root(shelf.model, event.adapter, event.salt)
            path = Path(root, event.block_tokens, (), ())
        else:
            path = shelf.paths.get((event.group, event.parent))
        if path is None and (event.group, event.hashes[0]) not in shelf.paths:
            return False
        for i, hash_ in enumerate(event.hashes):
            known = shelf.paths.get((event.group, hash_))
            if known is None:
                assert path is not None
                ids = event.token_ids[i * event.block_tokens : (i + 1) * event.block_tokens]
                known = path.then(ids, event.extras[i] if event.extras else b"")
                if self._cached(shelf, event.group, hash_):
                    shelf.paths[event.group, hash_] = known
            path = known
        shelf.waiting.remove(event)
        return True

    def _cached(self, shelf: _Shelf, group: int, hash_: EngineHash) -> bool:
        return any(shelf.copies[tier, group, hash_] for tier in Tier)

    def keys(self, target: TargetId, tier: Tier) -> set[Key]:
        """All blocks of known chains that `target` holds in `tier`."""
        shelf = self._shelves[target]
        return {
            self._keyring.chain(path.root, path.token_ids, path.block_tokens, path.extras)[-1]
            for (group, hash_), path in shelf.paths.items()
            if shelf.copies[tier, group, hash_]
        }

    def contiguous(self, target: TargetId) -> bool:
        """Is each block of known chains on the GPU preceded there by the one before it?"""
        shelf = self._shelves[target]
        held = {path for (group, hash_), path in shelf.paths.items() if shelf.copies[Tier.GPU, group, hash_]}
        return all(path.before in held for path in held if len(path.extras) > 1)

    def held_blocks(self, target: TargetId) -> int:
        """Of the group that holds the most."""
        shelf = self._shelves[target]
        kept = Counter(group for group, _ in {(group, path) for (group, _), path in shelf.paths.items()})
        return max(kept.values(), default=0)

    def match(self, keys: Sequence[Key], targets: Collection[TargetId]) -> dict[TargetId, HeldBlocks]:
        found: dict[TargetId, HeldBlocks] = {}
        for target in targets:
            reach: set[Key] = set()
            runs = []
            for tier in Tier:
                reach |= self.keys(target, tier)
                runs.append(next((i for i, key in enumerate(keys) if key not in reach), len(keys)))
            if runs[-1]:
                found[target] = HeldBlocks(*runs)
        return found
