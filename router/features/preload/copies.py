"""Copies of hot prefixes: one more holder for a prefix with more requests than its holders can serve.

    alarm   x / (1 - x) > m / (n - m)     x: share of the model's requests of the last minute that begin with the prefix
                                          m of n targets hold it

The alarm is on as soon as the holders' share of the fleet is smaller than the prefix's share of the requests. The
condition is from Zhang et al., "Simple is Better: Multiplication May Be All You Need for LLM Request Scheduling"
(arXiv 2603.15202). There, once enough requests of a class have gone to its holders in a row, further ones are
forced elsewhere until copies match the share. Here the holders must be at least twice as busy as the others, in
requests each. Then the copy is made first, when its new holder has nothing else to compute, and requests go to the
new holder because it holds the prefix.

Of several prefixes in alarm, the one whose missing holders would hold most tokens comes first:

    (x n - m) / m x tokens

Copies are not removed: when the prefix cools, no further copy is made, and the engines evict unused blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from router.control.core import Core
from router.features.preload.placement import find_place
from router.features.preload.plan import HotPrefix, RecentTraffic
from router.features.preload.preloader import Preloader
from router.features.preload.recent_prompts import RecentPrompt
from router.fleet.instance import InstanceState, Target
from router.kvcache.events import Key, TargetId

INTERVAL_S = 1.0
WINDOW_S = 60.0
MIN_REQUESTS = 8  # with a prefix, in the window, before its share is used
IMBALANCE = 2.0  # mean requests in flight at a holder, over the mean at another target
TIMEOUT_S = 30.0  # for one copy, including the wait until its target has nothing else to compute


class MissingCopy(NamedTuple):
    """A prefix that needs one more holder."""

    prompt: RecentPrompt
    urgency: float  # tokens of the prefix, times the number of missing holders per present holder


def find_missing_copy(
    hot: Iterable[HotPrefix],
    prompts: Mapping[Key, RecentPrompt],
    targets: Mapping[TargetId, int],
    holders: Callable[[Key], Collection[TargetId]],
) -> MissingCopy | None:
    """Return the prefix that most needs one more holder among `targets`, which may serve each other's requests;
    None if none does. `targets` has the requests in flight at each target. Prefixes that no target holds are left
    out, because their next request brings them, and so are prefixes whose ids are not kept.
    """
    found: MissingCopy | None = None
    for prefix in hot:
        prompt = prompts.get(prefix.key)
        if prompt is None or prefix.requests < MIN_REQUESTS:
            continue
        holding = targets.keys() & set(holders(prefix.key))
        count, fair = len(holding), len(targets) * prefix.share
        if not 0 < count < fair or count == len(targets):
            continue
        busy = sum(targets[id] for id in holding)
        others_busy = sum(targets.values()) - busy
        if busy / count <= IMBALANCE * others_busy / (len(targets) - count):
            continue
        urgency = (fair - count) / count * prefix.blocks * prompt.block_tokens
        if found is None or urgency > found.urgency:
            found = MissingCopy(prompt.cut(prefix.blocks), urgency)
    return found


class HotCopies:
    """Looks for a missing copy every second, and makes one copy at a time. If several processes route, only the
    leading one (`Core.leads`) does, from its own records.
    """

    def __init__(self, core: Core, preloader: Preloader, traffic: RecentTraffic) -> None:
        self._preloader = preloader
        self._scheduler = core.scheduler
        self._traffic = traffic
        self._leads = core.leads
        self._tasks = core.tasks
        self._clock = core.clock

    def start(self) -> None:
        """Start looking for missing copies."""
        self._tasks.supervise("copies", self._run)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.make_copies()

    async def make_copies(self) -> None:
        """Make one copy for each model and instance role that lacks one."""
        if not self._leads() or self._preloader.saved_ms <= 0:
            return
        for model, groups in self._group_targets().items():
            if not any(len(targets) > 1 for targets in groups.values()):
                continue
            hot = await self._traffic.count_sessions(model, self._clock.wall(), WINDOW_S)
            prompts = self._traffic.prompts.by_prefix() if hot else {}
            for targets in groups.values():
                requests = {target.id: target.load_book.requests for target in targets}
                missing = find_missing_copy(hot, prompts, requests, self._holders)
                if missing is not None:
                    await self._make(missing.prompt, targets)

    async def _make(self, prompt: RecentPrompt, targets: Collection[Target]) -> None:
        holding = self._holders(prompt.prefixes[-1])
        others = [one for one in targets if one.id not in holding and (prompt.adapter or prompt.model) in _models(one)]
        known = await self._preloader.tokenize(prompt)
        place = find_place(self._scheduler, others, known, self._clock.now())
        if place is not None:
            await self._preloader.load(place, prompt, "copy", TIMEOUT_S, known)

    def _group_targets(self) -> dict[str, dict[str, list[Target]]]:
        """Return the targets that compute clients' prompts, by base model and role of the instance."""
        groups: dict[str, dict[str, list[Target]]] = {}
        for instance in self._scheduler.fleet:
            role = instance.config.role
            if instance.state is InstanceState.READY and instance.base is not None and role != "decode":
                groups.setdefault(instance.base, {}).setdefault(role, []).extend(instance.targets.values())
        return groups

    def _holders(self, key: Key) -> Collection[TargetId]:
        """Return the targets that hold a block, in any tier."""
        gpu, slower = self._scheduler.indexer.holders(key)
        return {*gpu, *slower}


def _models(target: Target) -> Collection[str]:
    return target.instance.served.keys()
