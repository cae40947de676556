"""Hand-off: before an engine is drained, other engines get the prefixes that only it holds and several sessions
share.

    drain requested -> plan -> load one after the other, while the engine serves -> drained

Without a hand-off, the next session on each of these prefixes computes the prefix, and all requests queued behind
it wait longer. The engine gets requests during the hand-off, because it alone can answer them without computing the
prefixes. Prefixes in the shared pool are not handed off. A session's own history is not moved: in simulations this
gained nothing, because a session has often continued or ended before it is moved. The session's next turn goes to
the engine that the policy chooses for what it holds of the prompt.

Drains by an operator and by a rollout are handed off. A pod that Kubernetes ends is not, because it goes in any
case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from router.control.core import Core
from router.features.preload.placement import find_place
from router.features.preload.plan import HotPrefix, RecentTraffic
from router.features.preload.preloader import Preloader
from router.features.preload.recent_prompts import RecentPrompt
from router.fleet.instance import Instance, InstanceState, Target
from router.kvcache.events import Key

log = logging.getLogger("warmroute.preload")


@dataclass(slots=True)
class HandOffState:
    """The last hand-off of one instance."""

    began_wall_s: float
    planned: int = 0  # prefixes
    loaded: int = 0  # of `planned`, by this hand-off: others may be elsewhere without it, or in the pool
    took_s: float | None = None  # None: running
    end: Literal["done", "late", "stopped"] | None = None  # None: running; stopped: drained at once, or undrained


def plan_handoff(
    hot: Iterable[HotPrefix], prompts: Mapping[Key, RecentPrompt], is_only_there: Callable[[Key], bool]
) -> list[RecentPrompt]:
    """Return the prefixes that would be lost, those of most sessions first, and the longest first among equals. A
    prefix is left out if its ids are not kept, or if an earlier one of the plan begins with it.
    """
    planned: list[RecentPrompt] = []
    brought: set[Key] = set()
    for prefix in sorted(hot, key=lambda one: (-one.sessions, -one.blocks)):
        prompt = prompts.get(prefix.key)
        if prompt is not None and prefix.key not in brought and is_only_there(prefix.key):
            planned.append(prompt.cut(prefix.blocks))
            brought.update(planned[-1].prefixes)
    return planned


class HandOff:
    """Hands off the prefixes of instances to be drained, within `preload.drain_s` each."""

    def __init__(self, core: Core, preloader: Preloader, traffic: RecentTraffic) -> None:
        self.states: dict[str, HandOffState] = {}  # by instance, the last one of each
        self._limit_s = core.config.preload.drain_s
        self._preloader = preloader
        self._scheduler = core.scheduler
        self._traffic = traffic
        self._tasks = core.tasks
        self._clock = core.clock

    def begin(self, id: str) -> bool:
        """Begin the hand-off of an instance, which is drained at the end. Return False if the caller must drain it
        at once: it is not ready, no other could answer for it, or its hand-off was running and is stopped by this
        call.
        """
        instance = self._scheduler.fleet.get(id)
        if self.stop(id) or instance is None or instance.state is not InstanceState.READY or instance.base is None:
            return False
        if not self._find_others(instance, instance.base):
            return False
        for gone in [known for known in self.states if self._scheduler.fleet.get(known) is None]:
            del self.states[gone]
        self.states[id] = state = HandOffState(self._clock.wall())
        self._tasks.spawn(f"hand off {id}", self._run(instance, state, instance.base))
        return True

    def stop(self, id: str) -> bool:
        """Stop the hand-off of an instance, without draining the instance. Return False if none is running."""
        if not self.is_running(id):
            return False
        self.states[id].end = "stopped"
        return True

    def is_running(self, id: str) -> bool:
        """Return whether the hand-off of an instance is running."""
        return id in self.states and self.states[id].end is None

    async def _run(self, instance: Instance, state: HandOffState, model: str) -> None:
        began_at = self._clock.now()
        give_up_at = began_at + self._limit_s
        try:
            hot = await self._traffic.count_sessions(model, self._clock.wall())
            prompts = self._traffic.prompts.by_prefix() if hot else {}
            plan = plan_handoff(hot, prompts, lambda key: self._is_only_there(instance, key))
            state.planned = len(plan)
            for prompt in plan:
                if state.end is None:
                    await self._hand_over(instance, prompt, state, give_up_at)
        finally:
            state.took_s = self._clock.now() - began_at
            if state.end != "stopped":
                state.end = state.end or "done"
                self._scheduler.drain(instance.id, True)
        if state.planned:
            log.info(
                "instance %s was handed off: %d of %d prefixes, %.1f s, %s",
                *(instance.id, state.loaded, state.planned, state.took_s, state.end),
            )

    async def _hand_over(self, leaving: Instance, prompt: RecentPrompt, state: HandOffState, give_up_at: float) -> None:
        """Load one prefix into another instance, unless one holds it by now, or the pool does."""
        if not self._is_only_there(leaving, prompt.prefixes[-1]):
            return
        known = await self._preloader.tokenize(prompt)
        if await self._preloader.is_pooled(prompt, known):
            return
        others, now = self._find_others(leaving, prompt.adapter or prompt.model), self._clock.now()
        place = find_place(self._scheduler, others, known, now)
        if place is not None and now < give_up_at:
            state.loaded += await self._preloader.load(place, prompt, "drain", give_up_at - now, known) == "loaded"
        if state.end is None and self._clock.now() >= give_up_at:
            state.end = "late"

    def _is_only_there(self, leaving: Instance, key: Key) -> bool:
        """Return whether the instance holds a block that no remaining target holds."""
        gpu, slower = self._scheduler.indexer.holders(key)
        holders = [target for id in (*gpu, *slower) if (target := self._scheduler.fleet.target(id)) is not None]
        staying = [target for target in holders if self._keeps_serving(target, leaving)]
        return not staying and any(target.instance is leaving for target in holders)

    def _find_others(self, leaving: Instance, model: str) -> list[Target]:
        """Return the remaining targets that may get this instance's prefixes."""
        serving = self._scheduler.fleet.targets_serving(model)
        return [
            one
            for one in serving
            if self._keeps_serving(one, leaving) and one.instance.config.role == leaving.config.role
        ]

    def _keeps_serving(self, target: Target, leaving: Instance) -> bool:
        instance = target.instance
        ready = instance.state is InstanceState.READY and not self.is_running(instance.id)
        return ready and instance is not leaving
