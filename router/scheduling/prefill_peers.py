"""Who can hand a prompt's KV to whom: the instances that only prefill, and what must be known to tie two halves.

Both sides of a pair speak one transfer protocol. Mooncake also wants the prefill engine named by an id that changes
with every start of that engine: `backends/feeds/bootstrap.py` asks for it, and asks again whenever it is in doubt.
Until it has come, that engine is no peer and prompts are computed where they are answered: counted, not an error.

Pure, and knows nothing of load or caches: which of the peers it will be is the policy's choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from router.config import schema
from router.fleet.instance import Target


class MooncakePeer(NamedTuple):
    """How a decode engine finds a prefill target."""

    bootstrap_url: str
    engine_id: str


class PrefillPeers:
    """Also the bootstrap feed's `Registry`: `nameless` and `named`."""

    def __init__(self) -> None:
        self._prefilling: dict[str, schema.InstanceConfig] = {}
        self._engine_ids: dict[str, Mapping[int, str]] = {}  # by rank
        self.unpaired: Counter[str] = Counter()  # prefill halves that were wanted and could not be, by why

    def __bool__(self) -> bool:
        """Whether any instance only prefills."""
        return bool(self._prefilling)

    def add(self, config: schema.InstanceConfig) -> None:
        """It is ready, perhaps as another process than before."""
        if config.role == "prefill":
            self._prefilling[config.id] = config
        self.forget_engine_ids(config.id)

    def remove(self, instance: str) -> None:
        self._prefilling.pop(instance, None)
        self.forget_engine_ids(instance)

    def forget_engine_ids(self, instance: str) -> None:
        """Another process may answer there by now."""
        self._engine_ids.pop(instance, None)

    def without_engine_ids(self) -> list[str]:
        """Prefill instances with a bootstrap server whose engine ids are not known."""
        unknown = (config for id, config in self._prefilling.items() if id not in self._engine_ids)
        return [config.id for config in unknown if _bootstrap_url(config) is not None]

    def set_engine_ids(self, instance: str, engine_ids: Mapping[int, str]) -> None:
        if instance in self._prefilling:
            self._engine_ids[instance] = engine_ids

    def mooncake_peer(self, target: Target) -> MooncakePeer | None:
        """None: it speaks something else, or its engine's id is not known."""
        url = _bootstrap_url(target.instance.config)
        engine_id = self._engine_ids.get(target.instance.id, {}).get(target.rank)
        return None if url is None or engine_id is None else MooncakePeer(url, engine_id)

    def is_prefill_only(self, target: Target) -> bool:
        """It never answers by itself."""
        return target.instance.id in self._prefilling

    def peers_for(self, answering: Target, prefilling: Sequence[Target]) -> list[Target]:
        """Those of `prefilling` that can hand KV to `answering` now."""
        transfer = answering.instance.config.transfer
        protocol = None if transfer is None else transfer.protocol
        peers = [peer for peer in prefilling if (to := peer.instance.config.transfer) and to.protocol == protocol]
        if not peers:
            self.unpaired["protocol"] += 1
        elif protocol == "mooncake" and not (peers := [peer for peer in peers if self.mooncake_peer(peer)]):
            self.unpaired["engine_id"] += 1
        return peers


def _bootstrap_url(config: schema.InstanceConfig) -> str | None:
    transfer = config.transfer
    return transfer.bootstrap_url if transfer is not None and transfer.protocol == "mooncake" else None
