"""Sends a prefix to an engine ahead of the requests that begin with it. All preloads of this router go this way.

A preload is a completion of one token, with the prefix as token ids, so the engine computes the prefix or fetches
it from the shared pool, as for a client's request. Its `user` and `request_id` distinguish it in an engine's log.
It waits until its target computes no other prompt, one prefix per target at a time, and, if the target gets
requests, until the budget allows it (`budget.py`).

Callers choose prefix, target and time: for an engine that joins (`warmup.py`), for an engine that is drained
(`handoff.py`), and for hot prefixes (`copies.py`).
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal

import msgspec

from router.backends.fetch import Fetch
from router.backends.kv_store import KvStore
from router.clock import Clock
from router.features.preload.book import PreloadBook, Reason
from router.features.preload.booking import PreloadBooking, book_preload, settle_preload
from router.features.preload.budget import PreloadBudget
from router.features.preload.recent_prompts import RecentPrompt
from router.fleet.instance import InstanceState, ServedModel, Target
from router.kvcache.block_keys import Keyring
from router.kvcache.events import Key, TargetId
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from router.prompt.prompt import Endpoint
from router.prompt.usage import NO_USAGE, Usage, UsageTail
from router.scheduling.scheduler import Scheduler

POLL_S = 0.05
USER = "warmroute-preload"

PreloadEnd = Literal["loaded", "failed", "late", "gone"]
"""loaded: the engine has the prefix now; failed: no answer, or an error; late: not sent in time, because the target
was busy or the budget was spent; gone: the target left, or no longer serves the model.
"""


class Preloader:
    def __init__(
        self,
        budget: PreloadBudget,
        book: PreloadBook,
        scheduler: Scheduler,
        keyring: Keyring,
        kv_store: KvStore,
        fetch: Fetch,
        clock: Clock,
    ) -> None:
        self._budget = budget
        self._book = book
        self._scheduler = scheduler
        self._keyring = keyring
        self._kv_store = kv_store
        self._fetch = fetch
        self._clock = clock
        self._numbers = count(1)
        self._loading: set[TargetId] = set()

    @property
    def saved_ms(self) -> float:
        """Prefill time that may be taken now; below 0 if time was taken in advance."""
        engines = sum(instance.state is InstanceState.READY for instance in self._scheduler.fleet)
        return self._budget.saved_ms(engines, self._clock.now())

    async def load(
        self,
        target: Target,
        prompt: RecentPrompt,
        reason: Reason,
        timeout_s: float,
        known: TokenizedPrompt | None = None,
    ) -> PreloadEnd:
        """Load a prefix into a target, and return how the load ended. `known` is the result of `tokenize` for the
        prefix; None: not computed yet. Never raises for failures of the engine.
        """
        give_up_at, name = self._clock.now() + timeout_s, prompt.adapter or prompt.model
        known = known or await self.tokenize(prompt)
        origin = self._origin(prompt)
        while True:
            if (end := self._find_obstacle(target, name)) is None:
                pool_hit = await self._kv_store.lookup(known, origin)
                if (end := self._find_obstacle(target, name)) is None:
                    break
            if end == "gone" or self._clock.now() >= give_up_at:
                return end
            await asyncio.sleep(POLL_S)
        self._loading.add(target.id)
        try:
            booked = book_preload(self._scheduler, target, known, reason, pool_hit, self._clock.now())
            if target.instance.state is InstanceState.READY:
                self._budget.charge(booked.price_ms())
            return await self._load(booked, prompt, give_up_at)
        finally:
            self._loading.discard(target.id)

    def _find_obstacle(self, target: Target, model: str) -> PreloadEnd | None:
        """Return why nothing can be sent to the target now; None if a preload can be sent."""
        instance = target.instance
        if self._scheduler.fleet.target(target.id) is not target or model not in instance.served:
            return "gone"
        if instance.lifecycle is not InstanceState.READY:
            return "gone"
        if target.id in self._loading or target.load_book.prefilling or target.load_book.others_waiting:
            return "late"
        spent = self.saved_ms <= 0  # read in any case, so that the time since the last read counts
        return "late" if spent and instance.state is InstanceState.READY else None

    async def _load(self, booked: PreloadBooking, prompt: RecentPrompt, give_up_at: float) -> PreloadEnd:
        usage = None
        try:
            usage = await self._send(booked, prompt, give_up_at)
        finally:
            now, wall_s = self._clock.now(), self._clock.wall()
            loaded = settle_preload(self._scheduler, booked, usage, now, wall_s)
            self._book.note(booked.reason, loaded, prompt.prefixes)
        return "failed" if usage is None else "loaded"

    async def _send(self, booked: PreloadBooking, prompt: RecentPrompt, give_up_at: float) -> Usage | None:
        """Let the engine compute the prefix. Return the usage of its answer; None if the request failed."""
        target = booked.target
        body = {
            "model": prompt.adapter or prompt.model,
            # One token more than the prefix: a hybrid model keeps its tail where the last whole block before a prompt's
            # last token ends.
            "prompt": [*prompt.ids, prompt.ids[-1]],
            "max_tokens": 1,
            "temperature": 0,
            "user": USER,
            "request_id": f"{USER}-{booked.reason}-{next(self._numbers)}",
        }
        answer = await self._fetch(
            target.instance.id,
            Endpoint.COMPLETIONS.value,
            await asyncio.to_thread(msgspec.json.encode, body),
            timeout_s=max(1.0, give_up_at - self._clock.now()),
            rank=target.requested_rank,
        )
        if answer is None or answer.status != 200:
            return None
        tail = UsageTail(Endpoint.COMPLETIONS)
        tail.feed(answer.body)
        return tail.read_usage() or NO_USAGE

    async def is_pooled(self, prompt: RecentPrompt, known: TokenizedPrompt) -> bool:
        """Return whether the shared pool holds the prefix, apart from the last block, of which engines compute a
        token anyway.
        """
        hit = await self._kv_store.lookup(known, self._origin(prompt))
        return hit is not None and len(prompt.ids) - hit.tokens <= max(known.keys)

    def _origin(self, prompt: RecentPrompt) -> HashInputs:
        return self._scheduler.hash_inputs(None, ServedModel(prompt.model, prompt.adapter))

    async def tokenize(self, prompt: RecentPrompt) -> TokenizedPrompt:
        """Return the prefix with keys for all block sizes in use. It can take 3 ms; other requests continue
        meanwhile.
        """
        sizes = self._scheduler.block_sizes(prompt.model) | {prompt.block_tokens}
        return await asyncio.to_thread(_tokenize, prompt, self._keyring, sizes)


def _tokenize(prompt: RecentPrompt, keyring: Keyring, sizes: Iterable[int]) -> TokenizedPrompt:
    """Return the prefix with keys for blocks of all `sizes`."""
    root = keyring.root(prompt.model, prompt.adapter, None)
    ids = array("I", prompt.ids)
    keys: dict[int, Sequence[Key]] = {size: keyring.chain(root, ids, size) for size in sizes}
    return TokenizedPrompt(ids, True, "given", keys, 0.0, 0.0)
