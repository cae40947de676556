"""Warm-up: an engine that becomes ready gets the prefixes that its first requests will probably begin with.

The plan (`plan.py`) is made as soon as the engine's block size is known, separately for each rank, because ranks
have their own caches. A drained engine, as in a rollout, gets its prefixes as fast as it computes them. An engine
that gets requests receives them gradually, within the budget of all preloading.

If several processes route, only the worker on duty of the host with the first id (`leads`) warms engines up, from
its own records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from router.control.core import Core
from router.features.preload.plan import HotPrefix, PlannedPrefix, RecentTraffic, plan_join
from router.features.preload.preloader import Preloader
from router.fleet.instance import Instance, Target
from router.kvcache.events import Key, TargetId

log = logging.getLogger("warmroute.preload")

POLL_S = 0.05
FACTS_S = 5.0  # longest wait for an engine's block size and capacity; then it is warmed without them
CACHE_SHARE = 0.5  # largest part of a target's cache that is filled ahead


@dataclass(slots=True)
class WarmUpState:
    """The warm-up of one instance since it joined last."""

    began_wall_s: float
    planned: int = 0  # prefixes
    loaded: int = 0  # of `planned`
    tokens: int = 0  # of the loaded prefixes, without those that an earlier one of the plan brought
    took_s: float | None = None  # None: running
    end: Literal["done", "late", "failed", "gone"] | None = None  # None: running


class WarmUp:
    """Warms instances up, each within `preload.join_s`."""

    def __init__(self, core: Core, preloader: Preloader, traffic: RecentTraffic) -> None:
        self.states: dict[str, WarmUpState] = {}  # by instance, the last one of each
        self._config = core.config.preload
        self._preloader = preloader
        self._scheduler = core.scheduler
        self._traffic = traffic
        self._leads = core.leads
        self._tasks = core.tasks
        self._clock = core.clock

    def begin(self, id: str) -> None:
        """Warm up an instance that has become ready. Do nothing if another process warms engines up."""
        instance = self._scheduler.fleet.get(id)
        if instance is None or instance.base is None or not self._leads():
            return
        for gone in [known for known in self.states if self._scheduler.fleet.get(known) is None]:
            del self.states[gone]
        self.states[id] = state = WarmUpState(self._clock.wall())
        self._tasks.spawn(f"warm up {id}", self._run(instance, state, instance.base))

    def is_warming(self, id: str) -> bool:
        """Return whether the warm-up of an instance is running."""
        return id in self.states and self.states[id].end is None

    async def _run(self, instance: Instance, state: WarmUpState, model: str) -> None:
        began_at = self._clock.now()
        give_up_at = began_at + self._config.join_s
        try:
            if hot := await self._traffic.count_sessions(model, self._clock.wall()):
                await self._wait_for_facts(instance)
                plans = dict(self._plan(instance, hot))
                state.planned = sum(map(len, plans.values()))
                loads = (self._load_all(target, plan, state, give_up_at) for target, plan in plans.items())
                await asyncio.gather(*loads)
        finally:
            state.end = state.end or "done"
            state.took_s = self._clock.now() - began_at
        if state.planned:
            log.info(
                "instance %s is warmed: %d of %d prefixes, %d tokens, %.1f s, %s",
                *(instance.id, state.loaded, state.planned, state.tokens, state.took_s, state.end),
            )

    async def _wait_for_facts(self, instance: Instance) -> None:
        """Wait until block size and capacity are known. Events may give the block size before the metrics page
        gives both.
        """
        give_up_at = self._clock.now() + FACTS_S
        while self._clock.now() < give_up_at:
            targets = instance.targets.values()
            if all(self._scheduler.view_builder.block_tokens(one) and one.capacity_tokens for one in targets):
                return
            await asyncio.sleep(POLL_S)

    def _plan(self, instance: Instance, hot: list[HotPrefix]) -> Iterator[tuple[Target, list[PlannedPrefix]]]:
        """Yield the plan of each rank. Later ranks count earlier ones as holders of their planned prefixes."""
        prompts = self._traffic.prompts.by_prefix()
        left = self._config.join_tokens
        planned: dict[Key, set[TargetId]] = {}

        def holders(key: Key) -> Collection[TargetId]:
            on_gpu, _ = self._scheduler.indexer.holders(key)
            return planned.get(key, set()).union(on_gpu)

        for target in instance.targets.values():
            capacity = target.capacity_tokens
            room = left if capacity is None else min(left, int(CACHE_SHARE * capacity))
            plan = plan_join(target.id, hot, prompts, room, holders) if target.can_answer else []
            for one in plan:
                left -= one.new_tokens
                for key in one.prompt.prefixes:
                    planned.setdefault(key, set()).add(target.id)
            yield target, plan

    async def _load_all(self, target: Target, plan: list[PlannedPrefix], state: WarmUpState, give_up_at: float) -> None:
        """Load a plan into its target, one prefix after the other, until one is not loaded."""
        for one in plan:
            if self.states.get(target.instance.id) is not state:
                state.end = "gone"  # the instance has joined again
                return
            end = await self._preloader.load(target, one.prompt, "join", give_up_at - self._clock.now())
            if end != "loaded":
                state.end = end
                return
            state.loaded += 1
            state.tokens += one.new_tokens
