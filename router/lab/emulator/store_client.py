"""An emulated engine's client of the shared pool, with the queries and writes of vLLM's MooncakeStoreConnector.

Blocks have the connector's key strings for one rank (protocol 6.3). A pool that is silent, failing or gone counts
as empty and stores nothing, which never fails a request. `mooncake_master.py` is the pool itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from router.backends.fetch import Fetch
from router.kvcache.engine_hashes import Digest

POOL = "pool"  # its name among the engine's upstreams


class _KeyState(msgspec.Struct):
    ok: bool = False


class _Answer(msgspec.Struct):
    data: dict[str, _KeyState]


_decode = msgspec.json.Decoder(_Answer).decode


class EmulatedStoreClient:
    """Client of the pool. `model` is the model's part of every key, `timeout_s` the longest wait for one answer."""

    def __init__(self, model: str, fetch: Fetch, timeout_s: float) -> None:
        self._model = model
        self._fetch = fetch
        self._timeout_s = timeout_s

    def key(self, digest: Digest) -> str:
        """Return the key string of a block."""
        return f"{self._model}@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{digest.hex()}"

    async def count_leading(self, digests: Sequence[Digest]) -> int:
        """Return how many of these blocks the pool holds, from the first up to the first gap."""
        held = await self._query(digests) or set()
        return next((count for count, digest in enumerate(digests) if digest not in held), len(digests))

    async def put(self, digests: Sequence[Digest]) -> set[Digest]:
        """Save the blocks that the pool does not hold, and return them."""
        held = await self._query(digests)
        new = set() if held is None else set(digests) - held
        if not new:
            return set()
        body = msgspec.json.encode({"keys": [self.key(digest) for digest in digests if digest in new]})
        answer = await self._fetch(POOL, "/emulate/put", body, timeout_s=self._timeout_s)
        return new if answer is not None and answer.status == 200 else set()

    async def _query(self, digests: Sequence[Digest]) -> set[Digest] | None:
        """Return which of the blocks the pool holds. None if the pool did not answer."""
        if not digests:
            return set()
        keys = quote(",".join(map(self.key, digests)), safe="@:,")
        answer = await self._fetch(POOL, f"/batch_query_keys?keys={keys}", timeout_s=self._timeout_s)
        if answer is None or answer.status != 200:
            return None
        try:
            states = _decode(answer.body).data
        except msgspec.DecodeError:
            return None
        return {digest for digest in digests if states.get(self.key(digest), _KeyState()).ok}
