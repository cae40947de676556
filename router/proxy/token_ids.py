"""Sends requests like `Upstreams`, adding the prompt's token ids to its text for engines that accept them.

This class stands between the relays and the engines, so that a whole request, both halves of a pair, and a half
that is made only when the other has answered (`disaggregated.py`) all get ids in the same way, without knowing
about ids.

After a 400 the request is sent to the engine once more without ids: either the engine refused only the ids, or the
client's request was wrong, and the engine's second answer then concerns what the client really sent. A retried
decode half is the client's request alone, because refusing the first one made the engine drop the KV that waited
for it (generate/base/serving.py, `_with_kv_transfer_rejection_cleanup`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from router.backends.vllm.token_ids import JsonIds, add_ids, add_ids_to_params
from router.proxy.upstreams import Upstream, UpstreamExchange, UpstreamRequest, UpstreamUnanswered

REFUSED = 400
REFUSAL_BYTES = 64 * 1024


class TokenIdUpstreams:
    """The upstreams of one attempt. `plain` is the client's request as the instance `answering` would receive it
    without ids; `on_refusal` is called for each 400 with the answer's body, None if the body could not be read.
    """

    def __init__(
        self,
        upstreams: Upstream,
        plain: bytes,
        answering: str,
        ids: JsonIds,
        takers: Collection[str],
        on_refusal: Callable[[str, bytes | None], None],
    ) -> None:
        self._upstreams = upstreams
        self._plain = plain
        self._answering = answering
        self._ids = ids
        self._takers = takers
        self._on_refusal = on_refusal

    async def send(
        self, instance: str, request: UpstreamRequest, *, first_byte_s: float, idle_s: float
    ) -> UpstreamExchange | UpstreamUnanswered:
        """Send `request`, like `Upstreams.send`."""
        send = self._upstreams.send
        if instance not in self._takers:
            return await send(instance, request, first_byte_s=first_byte_s, idle_s=idle_s)
        insert = add_ids if request.body is self._plain else add_ids_to_params
        extended = request.with_body(insert(request.body, self._ids))
        answer = await send(instance, extended, first_byte_s=first_byte_s, idle_s=idle_s)
        if isinstance(answer, UpstreamUnanswered) or answer.status != REFUSED:
            return answer
        with answer:
            self._on_refusal(instance, await answer.read_all(REFUSAL_BYTES))
        if instance == self._answering:
            request = request.with_body(self._plain)
        return await send(instance, request, first_byte_s=first_byte_s, idle_s=idle_s)
