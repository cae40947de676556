"""Token ids from engines: from `POST /tokenize`, for models without a local tokenizer, and of the prompts that
engines generate from, for proofs (`prompt/tokenization/proof.py`).

The engine renders and tokenises the prompt once for the router and once more for the request, so this costs the
engine a little and the request a round trip. Requests in flight are bounded and shared fairly among clients, and
each has a deadline: if an engine does not answer, the prompt's ids are unknown, never late.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from router.backends.fetch import ANSWER_BYTES, Fetch
from router.backends.vllm.info import (
    read_answered_prompt,
    read_detokenize,
    read_rendered_prompt,
    read_sleeping,
    read_tokenize,
)
from router.prompt.tokenization.fair_slots import FairSlots
from router.prompt.tokenization.proof import GeneratedPrompt, RemoteFailure

IN_FLIGHT = 20  # a client that is alone may use four fifths of them
DETOKENIZE_S = 2.0  # meanwhile a client waits in the middle of its answer
BYTES_PER_PROMPT_BYTE = 8  # a token has at least a byte of text and at most seven digits of JSON
MOST_ANSWER_BYTES = 8 * 1024 * 1024  # a million ids


class EngineTokenizer:
    """Requests ids from engines, at most `IN_FLIGHT` at once."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._requests = 0
        self._in_flight = FairSlots(IN_FLIGHT)

    async def tokenize(
        self, fields: dict[str, Any], model: str, instances: Sequence[str], timeout_s: float, client: str = ""
    ) -> array[int] | RemoteFailure:
        """Return the ids of `fields` (a `Prompt.remote_fields` of `client`) from one of `instances`, in
        rotation.
        """
        if not instances:
            return "tokenizer_silent"
        self._requests += 1
        trouble: RemoteFailure = "tokenizer_busy"
        try:
            async with asyncio.timeout(timeout_s):
                await self._in_flight.take(client)
                trouble = "tokenizer_silent"
                try:
                    return await self.tokenize_at(instances[self._requests % len(instances)], fields, model, timeout_s)
                finally:
                    self._in_flight.give_back(client)
        except TimeoutError:
            return trouble

    async def tokenize_at(
        self, instance: str, fields: dict[str, Any], model: str, timeout_s: float
    ) -> array[int] | RemoteFailure:
        """Return the ids from `instance`, ignoring the limit on requests in flight: for checks."""
        try:
            body = msgspec.json.encode({"model": model, **fields})
        except (UnicodeEncodeError, RecursionError):
            return "tokenizer_refused"  # half of a surrogate pair: Python's JSON can carry one, UTF-8 cannot
        limit_bytes = min(ANSWER_BYTES + len(body) * BYTES_PER_PROMPT_BYTE, MOST_ANSWER_BYTES)
        answer = await self._fetch(instance, "/tokenize", body, timeout_s=timeout_s, limit_bytes=limit_bytes)
        if answer is None or answer.status >= 500:
            return "tokenizer_silent"
        ids = read_tokenize(answer.body) if answer.status == 200 else None
        return ids if ids is not None else "tokenizer_refused"

    async def render_at(self, instance: str, path: str, body: bytes, timeout_s: float) -> GeneratedPrompt | None:
        """Return the prompt that `instance` would generate from; None if it offers no rendering (403: started
        without `--enable-scale-out`) or did not return a readable one.
        """
        answer = await self._fetch(instance, f"{path}/render", body, timeout_s=timeout_s, limit_bytes=ANSWER_BYTES)
        ids = read_rendered_prompt(answer.body) if answer is not None and answer.status == 200 else None
        return None if ids is None else GeneratedPrompt(ids, len(ids))

    async def generate_at(
        self, instance: str, path: str, body: bytes, timeout_s: float
    ) -> GeneratedPrompt | RemoteFailure:
        """Return the prompt from which `instance` generated, as its whole answer reports it."""
        answer = await self._fetch(instance, path, body, timeout_s=timeout_s, limit_bytes=ANSWER_BYTES)
        if answer is None or answer.status >= 500 or answer.status == 429:
            return "tokenizer_silent"
        return GeneratedPrompt(*read_answered_prompt(answer.body)) if answer.status == 200 else "tokenizer_refused"

    async def is_asleep(self, instance: str, timeout_s: float) -> bool:
        """Return whether `instance` sleeps; engines report it only in vLLM's development mode."""
        answer = await self._fetch(instance, "/is_sleeping", timeout_s=timeout_s, limit_bytes=ANSWER_BYTES)
        return answer is not None and answer.status == 200 and read_sleeping(answer.body)

    async def detokenize(self, ids: Sequence[int], model: str, instances: Sequence[str]) -> str | None:
        """Return the text of a few `ids` from one of `instances`, in rotation; None if it does not answer."""
        if not instances:
            return None
        self._requests += 1
        instance = instances[self._requests % len(instances)]
        body = msgspec.json.encode({"model": model, "tokens": list(ids)})
        answer = await self._fetch(instance, "/detokenize", body, timeout_s=DETOKENIZE_S, limit_bytes=ANSWER_BYTES)
        return read_detokenize(answer.body) if answer is not None and answer.status == 200 else None
