"""Prefill peers: the instances that only prefill, and the facts needed to pair one with a decode target.

Both halves of a pair must use the same transfer protocol and have the same revision: another version of the engine
or the model may lay out KV differently, and during a rollout both versions run. Mooncake also needs the prefill
engine's id, which changes with every start of that engine: `backends/feeds/bootstrap.py` queries the id, and
queries it again whenever it may have changed. Until the id is known, the engine is no peer, and the answering
engine computes the prompt: this is counted and is not an error.

This module does no I/O and ignores load and caches: the policy chooses among the peers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from router.config import schema
from router.fleet.instance import Target


class MooncakePeer(NamedTuple):
    """The address and engine id by which a decode engine finds a prefill target."""

    bootstrap_url: str
    engine_id: str


class PrefillPeers:
    """Prefill instances and their engine ids. Implements the bootstrap feed's `EngineIdRegistry`."""

    def __init__(self) -> None:
        self._prefilling: dict[str, schema.InstanceConfig] = {}
        self._engine_ids: dict[str, Mapping[int, str]] = {}  # by rank
        self.on_unknown: list[Callable[[], None]] = []  # called when engine ids have become unknown
        self.unpaired: Counter[str] = Counter()  # pairs that were not possible, by reason

    def __bool__(self) -> bool:
        """Return whether any instance only prefills."""
        return bool(self._prefilling)

    def add(self, config: schema.InstanceConfig) -> None:
        """Add a ready instance, which may be a new process."""
        if config.role == "prefill":
            self._prefilling[config.id] = config
        self.forget_engine_ids(config.id)

    def remove(self, instance: str) -> None:
        """Remove an instance."""
        self._prefilling.pop(instance, None)
        self.forget_engine_ids(instance)

    def forget_engine_ids(self, instance: str) -> None:
        """Forget an instance's engine ids: a new process may have started."""
        self._engine_ids.pop(instance, None)
        if instance in self._prefilling:
            for notify in self.on_unknown:
                notify()

    def without_engine_ids(self) -> list[str]:
        """Return the prefill instances with a bootstrap server whose engine ids are unknown."""
        unknown = (config for id, config in self._prefilling.items() if id not in self._engine_ids)
        return [config.id for config in unknown if _bootstrap_url(config) is not None]

    def set_engine_ids(self, instance: str, engine_ids: Mapping[int, str]) -> None:
        """Set the engine ids of an instance, by rank."""
        if instance in self._prefilling:
            self._engine_ids[instance] = engine_ids

    def mooncake_peer(self, target: Target) -> MooncakePeer | None:
        """Return the target's address and engine id; None if it uses another protocol, or its engine id is
        unknown.
        """
        url = _bootstrap_url(target.instance.config)
        engine_id = self._engine_ids.get(target.instance.id, {}).get(target.rank)
        return None if url is None or engine_id is None else MooncakePeer(url, engine_id)

    def is_prefill_only(self, target: Target) -> bool:
        """Return whether the target only prefills and never answers clients."""
        return target.instance.id in self._prefilling

    def peers_for(self, answering: Target, prefilling: Sequence[Target]) -> list[Target]:
        """Return the targets in `prefilling` that can hand KV to `answering` now; if there are none, count the
        reason in `unpaired`.
        """
        config = answering.instance.config
        protocol = None if config.transfer is None else config.transfer.protocol
        peers = [peer for peer in prefilling if (to := peer.instance.config.transfer) and to.protocol == protocol]
        if not peers:
            self.unpaired["protocol"] += 1
        elif not (peers := [peer for peer in peers if peer.instance.config.revision == config.revision]):
            self.unpaired["revision"] += 1
        elif protocol == "mooncake" and not (peers := [peer for peer in peers if self.mooncake_peer(peer)]):
            self.unpaired["engine_id"] += 1
        return peers


def _bootstrap_url(config: schema.InstanceConfig) -> str | None:
    transfer = config.transfer
    return transfer.bootstrap_url if transfer is not None and transfer.protocol == "mooncake" else None
