"""Builds the parts that connect a process with its peers, from the configuration."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from router.backends.discovery.discovery import Discovery
from router.backends.feeds.jitter import Jitter
from router.clock import Clock
from router.config import schema
from router.config.sections.discovery import DnsConfig, KubernetesConfig
from router.control.control import Control
from router.control.key_secret import read_replicas_secret
from router.control.peers.exchange import FleetNetwork, HostNetwork, PeerExchange
from router.control.peers.experiments import SharedExperiments
from router.control.peers.facts import SharedFacts
from router.control.peers.frames import Sender
from router.control.peers.host_records import HostRecords
from router.control.peers.learned_state import LearnedState
from router.control.peers.parts import SharedPart
from router.control.peers.policies import SharedPolicies
from router.control.peers.scheduler import PeerScheduler
from router.control.switch import REPLICAS
from router.tasks import Tasks
from router.telemetry.recent_records import RecentRecords

REPLICAS_LOOKUP_S = 2.0


def build_replica_discovery(config: schema.Config, clock: Clock) -> Discovery | None:
    """Build the discovery of the other routers; None if there are none or the configuration lists them. Raises
    ConfigError outside of a cluster.
    """
    replicas, kubernetes = config.replicas, config.fleet.kubernetes
    if replicas is None or replicas.peers:
        return None
    if replicas.dns is not None:
        from router.backends.discovery.dns import DnsDiscovery

        return DnsDiscovery(DnsConfig(name=replicas.dns, port=replicas.port, interval_s=REPLICAS_LOOKUP_S), clock)
    from router.backends.discovery.kubernetes.discovery import KubernetesDiscovery

    api = None if kubernetes is None else kubernetes.api
    namespace = None if kubernetes is None or api is None else kubernetes.namespace
    pods = KubernetesConfig(namespace=namespace, selector=replicas.selector, ports=[replicas.port], api=api)
    return KubernetesDiscovery(pods, clock, Jitter(secrets.randbits(32) / 2**32))


def build_exchange(
    config: schema.Config, sender: Sender, host: HostNetwork | None, clock: Clock
) -> PeerExchange | None:
    """Build the exchange with the workers of `host`, and with the routers of other hosts; None if there are
    neither. Raises ConfigError if the other routers cannot be discovered.
    """
    fleet = None
    if config.replicas is not None:
        secret, discovery = read_replicas_secret(config.replicas), build_replica_discovery(config, clock)
        fleet = FleetNetwork(config.replicas, secret, discovery)
    return None if host is None and fleet is None else PeerExchange(sender, host, fleet, clock)


class LocalState(NamedTuple):
    """The parts of one process whose state peers share."""

    scheduler: PeerScheduler
    control: Control
    records: RecentRecords
    key_secret: int
    more: Sequence[SharedPart]  # of features and of what is configured


class PeerParts(NamedTuple):
    """The parts that other modules use."""

    facts: SharedFacts
    records: HostRecords


def connect_peers(exchange: PeerExchange, local: LocalState, tasks: Tasks, clock: Clock) -> PeerParts:
    """Let `exchange` share the state of this process, with one part for each kind of state."""
    scheduler, control = local.scheduler, local.control
    policies = SharedPolicies(control, exchange)
    decisions = lambda: [policies.version[:2], control.rollbacks]  # noqa: E731
    facts = SharedFacts(scheduler, exchange, lambda: exchange.members, lambda: control.trouble(REPLICAS), decisions)
    policies.on_applied = facts.publish
    control.wait_for_workers_with(facts.wait_until_applied)
    exchange.compare = facts.compare
    parts = PeerParts(facts, HostRecords(local.records, scheduler, exchange, tasks, clock))
    splits = () if control.splits is None else control.splits.splits
    experiments = SharedExperiments(exchange, scheduler, policies, splits, clock)
    learned = LearnedState(scheduler, local.key_secret, clock)
    exchange.attach(scheduler, learned, [policies, experiments, *parts, *local.more])
    return parts
