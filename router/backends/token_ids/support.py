"""Finds out which instances accept token ids, by a trial request to each.

A version number is no guarantee: the engine may be a fork, or a proxy may strip fields. So each instance is tried
in the background when it joins, comes back, or has failed to use ids. The trial is a tiny chat whose text and ids
are different prompts; an answer with the count of the ids proves that the ids were read. No request waits for a
trial, and an instance that does not answer is tried a few times, then not until it joins again.
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

log = logging.getLogger("warmroute.token_ids")

TRIAL_TIMEOUT_S = 5.0
TRIAL_PAUSES_S = (0.0, 5.0, 30.0, 120.0)  # before each trial of an engine that does not answer
AGAIN_AFTER_S = 60.0  # before an instance that failed to use ids is tried again
TRIAL_TEXT, TRIAL_IDS = "Hello there, how are you today?", "Hi"


class InstanceSupport(NamedTuple):
    """Result of the last trial of an instance."""

    takes: bool
    why: str  # for operators


class TokenIdSupport:
    """Trial results of all instances. `local` returns a base model's tokenizer; without one there is no trial."""

    def __init__(self, local: Callable[[str], LocalTokenizer | None], fetch: Fetch, tasks: Tasks) -> None:
        self._local = local
        self._fetch = fetch
        self._tasks = tasks
        self._results: dict[str, InstanceSupport] = {}

    def on_joined(self, instance: str, model: str) -> None:
        """Schedule a trial: the instance serves `model`, perhaps as a new process."""
        self._schedule_trial(instance, model, InstanceSupport(False, "it was not tried yet"), 0.0)

    def mark_failed(self, instance: str, model: str, why: str) -> None:
        """Stop sending ids to an instance that did not use them, until a new trial succeeds."""
        if self.accepts(instance):
            log.warning("instance %s: token-id pass-through is off until the next trial succeeds: %s", instance, why)
            self._schedule_trial(instance, model, InstanceSupport(False, why), AGAIN_AFTER_S)

    def forget(self, instance: str) -> None:
        """Drop the result of an instance that has left."""
        self._results.pop(instance, None)

    def accepts(self, instance: str) -> bool:
        """Return whether the instance accepts token ids."""
        result = self._results.get(instance)
        return result is not None and result.takes

    def report(self) -> dict[str, InstanceSupport]:
        """Return the results by instance."""
        return dict(self._results)

    def _schedule_trial(self, instance: str, model: str, meanwhile: InstanceSupport, after_s: float) -> None:
        self._results.pop(instance, None)
        if (local := self._local(model)) is None:
            return
        self._results[instance] = meanwhile
        ids = local.tokenize(Text(TRIAL_IDS, add_special_tokens=False))
        if 0 < len(ids) < len(local.tokenize(Text(TRIAL_TEXT, add_special_tokens=False))):
            self._tasks.spawn("try token ids", self._run_trial(instance, model, list(ids), meanwhile, after_s))
        else:
            self._results[instance] = InstanceSupport(
                False, "the model's tokenizer does not tell the two prompts of the trial apart"
            )

    async def _run_trial(
        self, instance: str, model: str, ids: list[int], meanwhile: InstanceSupport, after_s: float
    ) -> None:
        """Send trials until one is answered. The result counts only if nothing else was recorded meanwhile."""
        body = trial_body(model, TRIAL_TEXT, ids)
        result = InstanceSupport(False, "it did not answer when it was tried")
        for pause_s in TRIAL_PAUSES_S:
            await asyncio.sleep(after_s + pause_s)
            after_s = 0.0
            if self._results.get(instance) is not meanwhile:
                return
            answer = await self._fetch(instance, Endpoint.CHAT.value, body, timeout_s=TRIAL_TIMEOUT_S)
            if answer is not None and answer.status < 500:
                result = read_support(answer.status, answer.body, len(ids))
                break
        if self._results.get(instance) is meanwhile:
            self._results[instance] = result
            log.info("instance %s: %s", instance, result.why)


def read_support(status: int, answer: bytes, ids: int) -> InstanceSupport:
    """Return the engine's support as proved by an answer to `trial_body` with this many ids."""
    if status != 200:
        return InstanceSupport(False, f"it refuses token ids ({status})")
    count = read_count(answer)
    if count is None:
        return InstanceSupport(False, "its answer has no prompt_tokens")
    if count != ids:
        return InstanceSupport(False, "it does not look at token ids")
    return InstanceSupport(True, "it takes token ids")
