"""The shared pool as one emulated engine uses it: what vLLM's MooncakeStoreConnector asks of it and puts into it.

Blocks are named as that connector names them on one rank (protocol 6.3). A pool that is silent, broken or gone holds
nothing and takes nothing: that never fails a request. The pool itself is `master.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from router.backends.fetch import Fetch
from router.kvcache.engine_hashes import Digest

POOL = "pool"  # what it is called among the engine's upstreams


class _Told(msgspec.Struct):
    ok: bool = False


class _Answer(msgspec.Struct):
    data: dict[str, _Told]


_decode = msgspec.json.Decoder(_Answer).decode


class EmulatedStoreClient:
    """`model`: the model's part of every key. `timeout_s`: the longest wait for one answer."""

    def __init__(self, model: str, fetch: Fetch, timeout_s: float) -> None:
        self._model = model
        self._fetch = fetch
        self._timeout_s = timeout_s

    def key(self, digest: Digest) -> str:
        return f"{self._model}@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{digest.hex()}"

    async def leading(self, digests: Sequence[Digest]) -> int:
        """How many of these blocks, from the first on without a hole, it holds."""
        there = await self._there(digests) or set()
        return next((count for count, digest in enumerate(digests) if digest not in there), len(digests))

    async def put(self, digests: Sequence[Digest]) -> set[Digest]:
        """Puts what it does not hold, and tells which blocks these were."""
        there = await self._there(digests)
        new = set() if there is None else set(digests) - there
        if not new:
            return set()
        body = msgspec.json.encode({"keys": [self.key(digest) for digest in digests if digest in new]})
        answer = await self._fetch(POOL, "POST", "/emulate/put", body, timeout_s=self._timeout_s)
        return new if answer is not None and answer.status == 200 else set()

    async def _there(self, digests: Sequence[Digest]) -> set[Digest] | None:
        """None: it did not tell."""
        if not digests:
            return set()
        keys = quote(",".join(map(self.key, digests)), safe="@:,")
        answer = await self._fetch(POOL, "GET", f"/batch_query_keys?keys={keys}", timeout_s=self._timeout_s)
        if answer is None or answer.status != 200:
            return None
        try:
            told = _decode(answer.body).data
        except msgspec.DecodeError:
            return None
        return {digest for digest in digests if told.get(self.key(digest), _Told()).ok}
