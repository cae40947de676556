"""What happens, in all rooms, when an instance comes, tells of itself, or goes.

    listed   discovery's whole list   -> who is new joins, who is missing leaves
    joined   it told what it serves   -> it may be chosen; its events are followed, our tokenizer is proved against it
    serves, probe_ok, probe_failed    -> the fleet's states (`fleet/fleet.py`)

The rooms do not know each other; this is where one event reaches several of them. Implements what the feeds want to
tell: `feeds.health.Registry` and `feeds.metrics.Load`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from router.backends.feeds.bootstrap import bootstrap_of
from router.backends.feeds.health import HealthProbe
from router.backends.feeds.kv_events import KvEventSubscriber
from router.backends.feeds.metrics import MetricsPoller
from router.backends.token_ids.passthrough import TokenIdPassthrough
from router.config import schema
from router.errors import ConfigError
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.prompt.tokenization.tokenization import Tokenization
from router.proxy.upstreams import Upstreams
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks

log = logging.getLogger("warmroute.members")


class Membership:
    """The feeds are set right after it is made: they want to know it, too."""

    def __init__(
        self, core: Scheduler, upstreams: Upstreams, tokens: Tokenization, handing: TokenIdPassthrough, tasks: Tasks
    ) -> None:
        self._core = core
        self._upstreams = upstreams
        self._tokens = tokens
        self._handing = handing
        self._tasks = tasks
        self._lists: dict[str, Sequence[schema.InstanceConfig]] = {}
        self._configs: dict[str, schema.InstanceConfig] = {}
        self._doubles: set[tuple[str, str, str]] = set()  # an id, and the two sources that name it
        self.health: HealthProbe
        self.polls: MetricsPoller
        self.events: KvEventSubscriber

    def listed(self, source: str, instances: Sequence[schema.InstanceConfig]) -> None:
        """One discovery's whole list: what is new joins, what is gone leaves, what changed does both."""
        self._lists[source] = instances
        wanted = self._wanted()
        for id in [id for id, config in self._configs.items() if wanted.get(id) != config]:
            self._leave(id)
        for id, config in wanted.items():
            if id not in self._configs:
                self._join(id, config)

    def _wanted(self) -> dict[str, schema.InstanceConfig]:
        """All lists together, by id. What two of them name is as the first one says; that is warned of once."""
        wanted: dict[str, schema.InstanceConfig] = {}
        sources: dict[str, str] = {}
        doubles = set()
        for source, listed in self._lists.items():
            for config in listed:
                first = sources.setdefault(config.id, source)
                if first == source:
                    wanted[config.id] = config
                else:
                    doubles.add((config.id, first, source))
        for id, first, second in sorted(doubles - self._doubles):
            log.warning("instance %s is listed by both %s and %s: the one of %s counts", id, first, second, first)
        self._doubles = doubles
        return wanted

    def _join(self, id: str, config: schema.InstanceConfig) -> None:
        key = os.environ.get(config.api_key_env) if config.api_key_env else None
        try:
            self._upstreams.add(id, config.url, api_key=key, ca_file=config.ca_file)
        except ConfigError as wrong:  # of one instance: the others of its list are none the worse
            log.error("instance %s does not join: %s", id, wrong)
            return
        if config.transfer is not None and config.transfer.bootstrap_url is not None:
            self._upstreams.add(bootstrap_of(id), config.transfer.bootstrap_url)
        self._configs[id] = config
        self._core.fleet.join(config)
        self.health.watch(config)
        self.polls.watch(id)
        log.info("instance %s joins: %s", id, config.url)

    def _leave(self, id: str) -> None:
        del self._configs[id]
        self.health.unwatch(id)
        self.polls.unwatch(id)
        self._drop_streams(id)
        self._core.remove_instance(id)
        self._tokens.forget(id)
        self._handing.forget(id)
        self._upstreams.remove(id)
        self._upstreams.remove(bootstrap_of(id))
        log.info("instance %s leaves", id)

    def _drop_streams(self, id: str) -> None:
        if (member := self._core.fleet.get(id)) is not None:
            for target in member.targets.values():
                self.events.unsubscribe(target.id)

    # feeds.health.Registry

    def joined(self, instance: str, cards: Sequence[ModelCard], sources: Sequence[EventEndpoint]) -> None:
        self._drop_streams(instance)
        streams = {source.rank: source for source in sources}
        for target in self._core.add_instance(instance, cards, sources):
            if (stream := streams.get(target.rank)) is not None:
                self.events.subscribe(target.id, stream, host_cpu=target.instance.config.cpu_medium == "host")
        member = self._core.fleet.get(instance)
        if member is not None and member.base is not None:
            self._tasks.spawn("prove", self._tokens.verify(instance, member.base))
            self._handing.on_joined(instance, member.base)
        self.polls.watch(instance)  # perhaps another process: block size and capacity are asked anew
        log.info("instance %s is ready: %s", instance, ", ".join(card.id for card in cards))

    def serves(self, instance: str, cards: Sequence[ModelCard]) -> None:
        self._core.fleet.set_models(instance, cards)

    def probe_ok(self, instance: str, now: float) -> bool:
        return self._core.fleet.record_probe_success(instance, now)

    def probe_failed(self, instance: str, now: float) -> None:
        if self._core.fleet.record_probe_failure(instance, now):
            log.warning("instance %s is down: %s", instance, self.health.trouble(instance) or "probes fail")

    # feeds.metrics.Load

    def in_flight(self, instance: str) -> int:
        member = self._core.fleet.get(instance)
        return 0 if member is None else member.requests

    def polling(self, instance: str) -> None:
        self._core.fleet.begin_poll(instance)

    def gauges(self, instance: str, page: Mapping[int, Gauges], sent_at: float, now: float) -> None:
        self._core.apply_metrics(instance, page, sent_at)
