"""Plan of the prefixes for an engine that joins: those that its first requests will probably begin with.

The plan counts sessions, not requests: the turns of one session share their history, but they go to the engine that
holds it. A new session begins with what many sessions share (instructions, tools, documents), and may begin at any
target that holds this prefix. The joining engine becomes one more such target, so of the sessions that begin with a
prefix, one in `holders + 1` is expected at the joining engine. If less than one session is expected in the time
over which they were counted, loading the prefix would cost more than it saves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from router.features.preload.recent_prompts import RecentPrompt, RecentPrompts
from router.kvcache.events import Key, TargetId
from router.request.request import Request
from router.request.services import Services
from router.telemetry.recent_records import RecentRecords
from router.telemetry.shared_prefixes import RECORDS_PER_TURN, WINDOW_S

MIN_SESSIONS = 2
MIN_DEMAND = 1.0  # sessions


class HotPrefix(NamedTuple):
    """A prefix, and how many recent sessions began with it. A request without a session counts as one."""

    key: Key
    blocks: int
    sessions: int
    requests: int  # of these sessions
    all_requests: int  # of the model in the same time, whatever they begin with

    @property
    def share(self) -> float:
        """Share of the model's requests that began with the prefix."""
        return self.requests / self.all_requests


class PlannedPrefix(NamedTuple):
    """A prefix to load."""

    prompt: RecentPrompt  # as long as the prefix
    new_tokens: int  # its tokens that no earlier prefix of the plan brings
    demand: float  # sessions that are expected to begin with it at this target


class RecentTraffic:
    """Prefixes of recent requests: `records` have their sessions, and `prompts` their ids, within `limit_bytes`."""

    def __init__(self, records: RecentRecords, limit_bytes: int) -> None:
        self._records = records
        self.prompts = RecentPrompts(limit_bytes)

    def keep(self, request: Request, services: Services) -> None:
        """Keep the beginning of a request's prompt, as a stage. A prompt with a salt is its tenant's own, and not
        kept.
        """
        known, served = request.known, request.served
        if known is not None and request.prompt.salt is None and served is not None:
            self.prompts.add(known, *served)

    async def count_sessions(self, model: str, now: float, window_s: float = WINDOW_S) -> list[HotPrefix]:
        """Return, in no order, the prefixes that at least `MIN_SESSIONS` sessions share, in the model's records of
        the last `window_s` before `now` (wall clock). Other requests continue meanwhile.
        """
        sessions: dict[Key, set[str]] = {}
        requests: Counter[Key] = Counter()
        blocks: dict[Key, int] = {}
        all_requests = 0
        for n, record in enumerate(self._records.latest(len(self._records)), 1):
            if record.at_wall_s < now - window_s:
                break
            if record.attempts and (view := record.attempts[0].decision.view).model == model:
                all_requests += 1
                for i, key in enumerate(map(Key, view.prefixes)):
                    sessions.setdefault(key, set()).add(view.session or record.id)
                    requests[key] += 1
                    blocks[key] = 1 << i
            if n % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        return [
            HotPrefix(key, blocks[key], len(who), requests[key], all_requests)
            for key, who in sessions.items()
            if len(who) >= MIN_SESSIONS
        ]


def plan_join(
    target: TargetId,
    hot: Iterable[HotPrefix],
    prompts: Mapping[Key, RecentPrompt],
    budget_tokens: int,
    holders: Callable[[Key], Collection[TargetId]],
) -> list[PlannedPrefix]:
    """Return the prefixes to load into `target`, those with most expected sessions first, and the longest first
    among equals. A prefix is left out if its ids are not kept, if the target holds it (`holders`), if too few
    sessions are expected, or if it does not fit the rest of the budget.
    """
    wanted: list[tuple[float, int, RecentPrompt]] = []
    for prefix in hot:
        prompt, holding = prompts.get(prefix.key), holders(prefix.key)
        demand = prefix.sessions / (len(holding) + 1)
        if prompt is not None and target not in holding and demand >= MIN_DEMAND:
            wanted.append((demand, prefix.blocks, prompt.cut(prefix.blocks)))
    planned: list[PlannedPrefix] = []
    brought: set[Key] = set()
    left = budget_tokens
    for demand, _, prompt in sorted(wanted, key=lambda one: one[:2], reverse=True):
        new = len(prompt.ids) - _brought_tokens(prompt, brought)
        if prompt.prefixes[-1] not in brought and new <= left:
            left -= new
            brought.update(prompt.prefixes)
            planned.append(PlannedPrefix(prompt, new, demand))
    return planned


def _brought_tokens(prompt: RecentPrompt, brought: Collection[Key]) -> int:
    """Return the tokens of the prompt's longest prefix among `brought`."""
    return max((prompt.block_tokens << i for i, key in enumerate(prompt.prefixes) if key in brought), default=0)
