"""Asks engines as `Upstreams` does, with the prompt's token ids beside its text for those that take them.

It stands between the relays and the engines, so that a request, both halves of a pair, and a half that is made only
when the other has answered (`legs.py`) all go with ids in the same way, and none of them knows.

An engine that answers 400 is asked once more without ids: it may have refused just those, or have been right about the
client's request, and then says so again about what the client really sent. A decode half is then the client's request
alone: refusing it made the engine let go of the KV that waited for it (generate/base/serving.py,
`_with_kv_transfer_rejection_cleanup`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from router.backends.vllm.token_ids import Spelled, half_with_ids, with_ids
from router.proxy.upstreams import Upstream, UpstreamExchange, UpstreamRequest, UpstreamUnanswered

REFUSED = 400
REFUSAL_BYTES = 64 * 1024


class TokenIdUpstreams:
    """For one attempt. `plain` is the client's request, as the instance `answering` would get it without ids; `refused`
    hears of each 400, with its body or None.
    """

    def __init__(
        self,
        upstreams: Upstream,
        plain: bytes,
        answering: str,
        ids: Spelled,
        takers: Collection[str],
        refused: Callable[[str, bytes | None], None],
    ) -> None:
        self._upstreams = upstreams
        self._plain = plain
        self._answering = answering
        self._ids = ids
        self._takers = takers
        self._refused = refused

    async def ask(
        self, instance: str, question: UpstreamRequest, *, first_byte_s: float, idle_s: float
    ) -> UpstreamExchange | UpstreamUnanswered:
        """As `Upstreams.ask`."""
        ask = self._upstreams.ask
        if instance not in self._takers:
            return await ask(instance, question, first_byte_s=first_byte_s, idle_s=idle_s)
        add = with_ids if question.body is self._plain else half_with_ids
        handing = question._replace(body=add(question.body, self._ids))
        answer = await ask(instance, handing, first_byte_s=first_byte_s, idle_s=idle_s)
        if isinstance(answer, UpstreamUnanswered) or answer.status != REFUSED:
            return answer
        with answer:
            self._refused(instance, await answer.whole(REFUSAL_BYTES))
        if instance == self._answering:
            question = question._replace(body=self._plain)
        return await ask(instance, question, first_byte_s=first_byte_s, idle_s=idle_s)
