"""Which instances take token ids: those that were *seen* to.

A version number promises nothing (it may be a fork, or stand behind something that strips fields). So each is asked, in
the background, when it joins, comes back, or has not taken ids after all: a tiny chat whose text and ids are different
prompts, and whoever answers with the count of the ids has read them. Nobody waits for it, and an instance that does not
answer is asked a few times, then no more until it joins again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from router.backends.fetch import Fetch
from router.backends.vllm.token_ids import read_count, trial_body
from router.prompt.prompt import Endpoint, Text
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from router.tasks import Tasks

log = logging.getLogger("warmroute.handing")

TRIAL_TIMEOUT_S = 5.0
TRIAL_PAUSES_S = (0.0, 5.0, 30.0, 120.0)  # before each question to an engine that does not answer it
AGAIN_AFTER_S = 60.0  # until one that would not take ids after all is asked anew
TRIAL_TEXT, TRIAL_IDS = "Hello there, how are you today?", "Hi"


class InstanceSupport(NamedTuple):
    """What is known of an instance."""

    takes: bool
    why: str  # for people


class TokenIdSupport:
    """`local`: the tokenizer for a base model; whoever serves one that has none is not asked."""

    def __init__(self, local: Callable[[str], LocalTokenizer | None], fetch: Fetch, tasks: Tasks) -> None:
        self._local = local
        self._fetch = fetch
        self._tasks = tasks
        self._known: dict[str, InstanceSupport] = {}

    def on_joined(self, instance: str, model: str) -> None:
        """It serves `model` from now on, perhaps as another process than before: nothing is known of it."""
        self._ask(instance, model, InstanceSupport(False, "it was not tried yet"), 0.0)

    def mark_failed(self, instance: str, model: str, why: str) -> None:
        """It was taken for one that takes ids, and did not: it gets none until it is seen to again."""
        if self.accepts(instance):
            log.warning("instance %s gets no token ids until it is tried again: %s", instance, why)
            self._ask(instance, model, InstanceSupport(False, why), AGAIN_AFTER_S)

    def forget(self, instance: str) -> None:
        self._known.pop(instance, None)

    def accepts(self, instance: str) -> bool:
        taker = self._known.get(instance)
        return taker is not None and taker.takes

    def report(self) -> dict[str, InstanceSupport]:
        return dict(self._known)

    def _ask(self, instance: str, model: str, meanwhile: InstanceSupport, after_s: float) -> None:
        self._known.pop(instance, None)
        if (local := self._local(model)) is None:
            return
        self._known[instance] = meanwhile
        ids = local.tokenize(Text(TRIAL_IDS, add_special_tokens=False))
        if 0 < len(ids) < len(local.tokenize(Text(TRIAL_TEXT, add_special_tokens=False))):
            self._tasks.spawn("try handing", self._try(instance, model, list(ids), meanwhile, after_s))
        else:
            self._known[instance] = InstanceSupport(
                False, "the model's tokenizer does not tell the two prompts of the trial apart"
            )

    async def _try(self, instance: str, model: str, ids: list[int], meanwhile: InstanceSupport, after_s: float) -> None:
        """Asks until it says something. What it says counts only if nothing else became known of it by then."""
        body = trial_body(model, TRIAL_TEXT, ids)
        taker = InstanceSupport(False, "it did not answer when it was tried")
        for pause_s in TRIAL_PAUSES_S:
            await asyncio.sleep(after_s + pause_s)
            after_s = 0.0
            if self._known.get(instance) is not meanwhile:
                return
            answer = await self._fetch(instance, "POST", Endpoint.CHAT.value, body, timeout_s=TRIAL_TIMEOUT_S)
            if answer is not None and answer.status < 500:
                taker = read_support(answer.status, answer.body, len(ids))
                break
        if self._known.get(instance) is meanwhile:
            self._known[instance] = taker
            log.info("instance %s: %s", instance, taker.why)


def read_support(status: int, answer: bytes, ids: int) -> InstanceSupport:
    """What an answer to `trial_body` with this many ids says of the engine."""
    if status != 200:
        return InstanceSupport(False, f"it refuses token ids ({status})")
    count = read_count(answer)
    if count is None:
        return InstanceSupport(False, "its answer tells no prompt_tokens")
    if count != ids:
        return InstanceSupport(False, "it does not look at token ids")
    return InstanceSupport(True, "it takes token ids")
