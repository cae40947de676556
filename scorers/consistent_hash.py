"""Rendezvous hashing: the same key always goes to the same target, and nothing is remembered.

    cost = hash(salt, key, target)      uniform between 0 and 1; the least wins

Thaler & Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (IEEE/ACM Transactions on Networking, 1998),
with the lowest weight instead of the highest. Every router of a deployment computes the same order, before and
after a restart. When a target leaves, its keys are spread evenly and no other key moves; a new target takes only
its share. A ring of virtual nodes (vllm-router's `consistent_hash`) does the same less evenly.

The key is a property of the request. If the key is missing, the prompt's prefix replaces it, so that prompts with
the same prefix still meet. If the prefix is unknown too, the request's number is the key, which spreads requests
evenly and differently on every router.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from scorers.chance import draws
from scorers.contract import Needs, Scorer, Unit, View

Key = Literal["prefix", "session", "program", "adapter", "tenant"]

NEEDS: dict[Key, Needs] = {
    "prefix": Needs.CACHE,
    "session": Needs.SESSION,
    "program": Needs.SESSION,
    "adapter": Needs.NONE,
    "tenant": Needs.NONE,
}


@dataclass(frozen=True)
class ConsistentHash(Scorer):
    """A number between 0 and 1 that depends on the request's key and the target alone: a key's order of targets.

    `by` names the key. A prefix is known where the router tokenises prompts; only `by: prefix` makes it do so. A
    different `salt` gives another order: two policies with different salts disagree on purpose.

    Missing: a request without the key is hashed by its prefix, and without that by its number.
    """

    needs = Needs.CACHE | Needs.SESSION
    unit = Unit.POINTS

    by: Key = "prefix"
    salt: int = 0

    def __post_init__(self) -> None:
        # per instance: hashing sessions does not need the work of tokenising and computing block keys
        object.__setattr__(self, "needs", NEEDS[self.by])

    def score(self, view: View) -> Sequence[float]:
        digest = blake2b(self._key(view).encode(), digest_size=8).digest()
        return draws(self.salt, int.from_bytes(digest), [row.target for row in view.rows], use="consistent_hash")

    def _key(self, view: View) -> str:
        keys = {
            "session": view.session,
            "program": view.program,
            "adapter": view.adapter,
            "tenant": view.ask.tenant,
        }
        key = keys.get(self.by)
        if key is not None:
            return f"{self.by} {key}"
        if view.prefix is not None:
            return f"prefix {view.prefix}"
        return f"request {view.seed} {view.number}"
