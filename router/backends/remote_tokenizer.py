"""Token ids from an engine: `POST /tokenize`, for models without a tokenizer here, and to check the one that is here.

The engine renders and tokenises the prompt once for us and once more for itself, so this costs it a little and the
request a round trip. Questions in flight are bounded, and each has a deadline: an engine that does not answer makes a
prompt unknown, never late.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from router.backends.fetch import Fetch
from router.backends.vllm.info import read_tokenize
from router.prompt.tokenization.tokenization import RemoteFailure

IN_FLIGHT = 16


class EngineTokenizer:
    """Asks engines for ids, at most `IN_FLIGHT` questions at once."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._asked = 0
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)

    async def tokenize(
        self, fields: dict[str, Any], model: str, instances: Sequence[str], timeout_s: float
    ) -> array[int] | RemoteFailure:
        """The ids of `fields` (a `Prompt.remote_fields`) at one of `instances`, taken in turn."""
        if not instances:
            return "tokenizer_silent"
        self._asked += 1
        trouble: RemoteFailure = "tokenizer_busy"
        try:
            async with asyncio.timeout(timeout_s), self._in_flight:
                trouble = "tokenizer_silent"
                return await self.tokenize_at(instances[self._asked % len(instances)], fields, model, timeout_s)
        except TimeoutError:
            return trouble

    async def tokenize_at(
        self, instance: str, fields: dict[str, Any], model: str, timeout_s: float
    ) -> array[int] | RemoteFailure:
        """The same, of one instance, past the bound: for proofs."""
        body = msgspec.json.encode({"model": model, **fields})
        answer = await self._fetch(instance, "POST", "/tokenize", body, timeout_s=timeout_s)
        if answer is None or answer.status >= 500:
            return "tokenizer_silent"
        ids = read_tokenize(answer.body) if answer.status == 200 else None
        try:
            return array("I", ids) if ids is not None else "tokenizer_refused"
        except OverflowError:
            return "tokenizer_refused"
