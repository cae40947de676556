"""Builds what connects a router with its replicas, from the configuration."""

from __future__ import annotations

import os
import secrets

from router.backends.discovery.discovery import Discovery
from router.backends.feeds.jitter import Jitter
from router.clock import Clock
from router.config import schema
from router.config.sections.discovery import DnsConfig, KubernetesConfig
from router.config.sections.replicas import ReplicasConfig
from router.control.control import Control
from router.control.workers.follower import LocalState
from router.control.workers.leader import LeaderWorker
from router.request.admission.waiting import AdmissionQueues
from router.request.wake.waiting_models import WaitingModels

REPLICAS_LOOKUP_S = 2.0


def read_replicas_secret(config: ReplicasConfig) -> bytes:
    return os.fsencode(os.environ[config.secret_env])


def build_replica_discovery(config: schema.Config, clock: Clock) -> Discovery | None:
    """Build what finds the other routers; None: they are listed. Raises ConfigError outside of a cluster."""
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


def connect_replicas(
    config: schema.Config,
    local: LocalState,
    leader: LeaderWorker,
    control: Control,
    queues: AdmissionQueues,
    waiting: WaitingModels,
) -> None:
    """Let `leader` report to other replicas, if there are any, for all workers of this router, `control` follow what is
    decided there, `queues` count what is admitted there, and `waiting` what waits there for an instance.
    """
    if config.replicas is not None:
        from router.control.replicas.admission import SharedAdmission
        from router.control.replicas.engines import SharedEngines
        from router.control.replicas.exchange import ReplicaExchange  # loads ZeroMQ only where it is used
        from router.control.replicas.experiments import SharedExperiments
        from router.control.replicas.facts import SharedFacts
        from router.control.replicas.learned_state import LearnedState
        from router.control.replicas.policies import SharedPolicies
        from router.control.replicas.tenants import SharedTenants
        from router.control.replicas.wake import SharedWaits

        secret, run_id, clock = read_replicas_secret(config.replicas), local.run_id, local.clock
        learned = LearnedState(local.scheduler, leader.secret, clock)
        discovery = build_replica_discovery(config, clock)
        exchange = ReplicaExchange(config.replicas, secret, run_id, leader, learned, clock, discovery)
        policies = SharedPolicies(run_id, control, exchange.share)
        exchange.add(policies)
        exchange.add(SharedExperiments(run_id, local.scheduler, policies, exchange, clock))
        exchange.add(SharedEngines(run_id, leader, local.scheduler, exchange.share))
        facts = SharedFacts(local.scheduler, exchange.share)
        exchange.add(facts)
        exchange.compare = facts.compare
        exchange.add(SharedAdmission(queues, exchange.share, exchange.heard_runs))
        exchange.add(SharedWaits(waiting, exchange.share))
        if leader.tenants is not None:
            exchange.add(SharedTenants(leader.tenants, exchange.share, exchange.heard_runs, clock))
        leader.report_to_replicas(exchange)
