"""Membership of the fleet: forwards an instance's joining, reports and leaving to all parts of the router.

    update_source    a discovery source's whole list  -> new instances join, missing ones leave, those that are to get
                                                         no new requests drain
    joined           the engine reported its models   -> its targets may be chosen, its events are followed, and its
                                                         token ids are compared with ours
    serves, probe_ok, probe_failed                    -> state changes in the fleet (`router/fleet/fleet.py`)
    over_limit       an engine answered or published  -> counted, logged once; the engine's events are not followed
                     too much                            any more

The parts do not depend on each other; this class forwards each event to all parts that need it. It implements the
protocols that the feeds call: `HealthRegistry`, `LoadRegistry` and `LimitObserver`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.merge import Member, MergedSources
from router.backends.feeds.bootstrap import bootstrap_name
from router.backends.feeds.health import HealthProbe
from router.backends.feeds.kv_events import KvEventSubscriber
from router.backends.feeds.metrics import MetricsPoller
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.backends.token_ids.proofs import TokenizerProofs
from router.errors import ConfigError
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.fleet.engine_limits import DISTRUSTING, OverLimit
from router.kvcache.events import TargetId
from router.proxy.upstreams import Upstreams
from router.scheduling.scheduler import Scheduler
from router.tasks import in_turns

log = logging.getLogger("warmroute.members")

CHANGES_PER_TURN = 25


class Membership:
    """Forwards the events of instances. `health`, `polls` and `events` are set after construction, because these
    feeds are built with this object.

    `precedence` has the names of the sources: the first source that lists an instance describes it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        upstreams: Upstreams,
        proofs: TokenizerProofs,
        passthrough: TokenIdPassthrough,
        precedence: Sequence[str] = (),
    ) -> None:
        self._scheduler = scheduler
        self._upstreams = upstreams
        self._proofs = proofs
        self._passthrough = passthrough
        self._updating = asyncio.Lock()
        self._sources = MergedSources(precedence)
        self._joined: dict[str, Member] = {}  # by id, as it joined
        self._late: set[str] = set()  # instances with probes that timed out since their last success
        self._panics: set[str] = set()  # models in panic
        scheduler.fleet.on_change.append(self._follow_panics)
        self._unapplied: dict[str, None] = {}  # ids of instances that are to join or leave, in order
        self.health: HealthProbe
        self.polls: MetricsPoller
        self.events: KvEventSubscriber
        self.on_joined: list[Callable[[str], None]] = []  # called with each instance that has become ready

    async def update_source(self, source: str, instances: Sequence[DiscoveredInstance]) -> None:
        """Apply one discovery source's whole list: missing instances leave, new ones join, and an instance that has
        changed, or is another pod than before, leaves and joins again. Instances are applied a few at a time, since
        hundreds in one turn of the event loop would delay requests; those that are to get no new requests are
        marked at once.
        """
        self._merge(source, instances)
        async with self._updating:
            async for id in in_turns(list(self._unapplied), CHANGES_PER_TURN):
                self._apply(id)

    def _merge(self, source: str, instances: Sequence[DiscoveredInstance]) -> None:
        """Merge all lists. Stop new requests to each instance that drains, or is no longer listed as it joined."""
        conflicts = self._sources.conflicts
        for id in self._sources.update(source, instances):
            self._unapplied[id] = None
            if (old := self._joined.get(id)) is not None:
                new = self._sources.members.get(id)
                accepting = new is not None and new.accepting and _is_same(old, new)
                self._scheduler.fleet.set_accepting(id, accepting)
        for id, first, second in sorted(self._sources.conflicts - conflicts):
            log.warning("instance %s is listed by both %s and %s: using the one of %s", id, first, second, first)

    def _apply(self, id: str) -> None:
        """Let one instance join or leave, as it is listed now."""
        self._unapplied.pop(id, None)
        old, new = self._joined.get(id), self._sources.members.get(id)
        if old is not None and new is not None and _is_same(old, new):
            return
        if old is not None:
            self._leave(id)
        if new is not None:
            self._join(id, new)

    def describe_sources(self, id: str) -> list[dict[str, Any]]:
        """Return the sources that list the instance, beginning with the one that describes it; empty if no source
        lists it.
        """
        member = self._sources.members.get(id)
        return [
            {"source": source, "origin": listed.origin, "uid": listed.uid, "accepting": listed.accepting}
            for source, listed in (() if member is None else member.listings)
        ]

    def _join(self, id: str, member: Member) -> None:
        config = member.config
        key = os.environ.get(config.api_key_env) if config.api_key_env else None
        try:
            self._upstreams.add(id, config.url, api_key=key, ca_file=config.ca_file)
        except ConfigError as error:  # the other instances of the list are not affected
            log.error("instance %s cannot join: %s", id, error)
            self._unapplied[id] = None  # retried with the next list
            return
        if config.transfer is not None and config.transfer.bootstrap_url is not None:
            self._upstreams.add(bootstrap_name(id), config.transfer.bootstrap_url)
        self._joined[id] = member
        self._scheduler.fleet.join(config)
        self._scheduler.fleet.set_accepting(id, member.accepting)
        self.health.watch(config)
        self.polls.watch(id)
        log.info("instance %s joins: %s", id, config.url)

    def _leave(self, id: str) -> None:
        del self._joined[id]
        self._late.discard(id)
        self.health.unwatch(id)
        self.polls.unwatch(id)
        self._drop_streams(id)
        self._scheduler.remove_instance(id)
        self._proofs.forget(id)
        self._passthrough.forget(id)
        self._upstreams.remove(id)
        self._upstreams.remove(bootstrap_name(id))
        log.info("instance %s leaves", id)

    def _drop_streams(self, id: str) -> None:
        if (member := self._scheduler.fleet.get(id)) is not None:
            for target in member.targets.values():
                self.events.unsubscribe(target.id)

    # HealthRegistry

    def joined(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> None:
        self._drop_streams(instance)
        streams = {source.rank: source for source in sources}
        for target in self._scheduler.add_instance(instance, cards, sources):
            if (stream := streams.get(target.rank)) is not None:
                self.events.subscribe(target.id, stream, host_cpu=target.instance.config.cpu_medium == "host")
        member = self._scheduler.fleet.get(instance)
        if member is not None and member.base is not None:
            self._proofs.on_joined(instance, member.base)
            self._passthrough.on_joined(instance, member.base)
        for follow in self.on_joined:
            follow(instance)
        self.polls.watch(instance)  # perhaps a new process: query block size and capacity again
        log.info("instance %s is ready: %s", instance, ", ".join(card.id for card in cards))

    def serves(self, instance: str, cards: Sequence[ModelCard]) -> None:
        self._scheduler.fleet.set_models(instance, cards)

    def probe_ok(self, instance: str, now: float) -> bool:
        joining = self._scheduler.fleet.record_probe_success(instance, now)
        if not joining:
            self._late.discard(instance)
        return joining

    def probing(self, instance: str) -> None:
        self._scheduler.fleet.begin_probe(instance)

    def probe_failed(self, instance: str, now: float, *, late: bool) -> None:
        if late:
            self._late.add(instance)
        if self._scheduler.fleet.record_probe_failure(instance, now, late=late):
            log.warning("instance %s is down: %s", instance, self.health.trouble(instance) or "probes fail")

    def _follow_panics(self) -> None:
        """Log which models begin or cease to be served by instances whose probes time out."""
        fleet = self._scheduler.fleet
        if not self._late and not self._panics:  # return early: a thousand joining instances are as many changes
            return
        late = [each for id in self._late if (each := fleet.get(id)) is not None]
        panics = {each.base for each in late if each.base is not None and fleet.in_panic(each)}
        for model in sorted(panics - self._panics):
            log.error("panic begins: no engine of %s is ready; those whose health probes time out are served", model)
        for model in sorted(self._panics - panics):
            log.warning("panic is over: %s is served by engines that answer their probes, or by none", model)
        self._panics = panics

    def over_limit(self, instance: str, over: OverLimit) -> None:
        if (member := self._scheduler.fleet.get(instance)) is None:
            return
        trusted = member.limits.distrust is None
        first = member.limits.record(over)
        if over.limit in DISTRUSTING:
            if trusted:
                self._drop_streams(instance)
                self._scheduler.distrust(instance)
            if first:
                log.warning("instance %s: %s: served without its KV events until it joins again", instance, over.detail)
        elif first:
            log.warning("instance %s: %s", instance, over.detail)

    # LimitObserver, of the event streams and the index

    def target_over_limit(self, target: TargetId, over: OverLimit) -> None:
        self.over_limit(target.rpartition("/")[0], over)

    # LoadRegistry

    def in_flight(self, instance: str) -> int:
        member = self._scheduler.fleet.get(instance)
        return 0 if member is None else member.requests

    def polling(self, instance: str) -> None:
        self._scheduler.fleet.begin_poll(instance)

    def gauges(self, instance: str, page: Mapping[int, Gauges], sent_at: float, now: float) -> None:
        self._scheduler.apply_metrics(instance, page, sent_at)


def _is_same(old: Member, new: Member) -> bool:
    """Return whether two descriptions are of one engine, reached in the same way."""
    return old.uid == new.uid and (old.config is new.config or old.config == new.config)
