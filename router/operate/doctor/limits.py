"""Check limits: of this machine, if it runs the router; of connections to engines; of load balancers in front."""

from __future__ import annotations

from collections.abc import Iterator

from router.operate.doctor.check import Check
from router.operate.doctor.finding import Edit, FleetFinding
from router.operate.doctor.subject import Subject

FILES_PER_REQUEST = 2  # a connection to the client, one to the engine
SPARE_FILES = 256  # listeners, event streams, logs, libraries
ENGINE_KEEPALIVE_S = 5.0  # vLLM closes an idle connection after this (uvicorn's timeout_keep_alive)
BACKLOG = 1024  # connections that may wait at a listener
ROUTER_BYTES = 512 * 1024 * 1024  # of a router that holds no bodies or prompts yet, and its index
ENVOY_CONNECTIONS = 1024  # default of circuit_breakers.max_connections and max_requests
MIN_SESSIONS = 20


def check_files(subject: Subject) -> Iterator[FleetFinding]:
    """The process may open as many files as `limits.concurrent` requests need."""
    if subject.config is None or subject.host.open_files is None:
        return
    wanted = FILES_PER_REQUEST * subject.config.limits.concurrent + SPARE_FILES
    if subject.host.open_files < wanted:
        most = max(1, (subject.host.open_files - SPARE_FILES) // FILES_PER_REQUEST)
        yield FleetFinding(
            "fault",
            f"{subject.host.open_files:,} files may be open (hard limit), and {subject.config.limits.concurrent:,} "
            f"requests need {wanted:,}",
            "beyond it connections are refused, while limits.concurrent says that there is room",
            f"ulimit -Hn {wanted} (LimitNOFILE= of systemd), or concurrent: {most}",
            (),
            subject.place("limits", "concurrent"),
            Edit(("limits", "concurrent"), most),
        )


def check_kernel(subject: Subject) -> Iterator[FleetFinding]:
    """The kernel's backlog and local ports suffice for the router's connections."""
    host, config = subject.host, subject.config
    if config is None:
        return
    if host.somaxconn is not None and host.somaxconn < BACKLOG:
        yield FleetFinding(
            "warning",
            f"net.core.somaxconn is {host.somaxconn}",
            "in a burst new connections are dropped, and clients wait a second or three to try again",
            f"sysctl -w net.core.somaxconn={4 * BACKLOG}",
        )
    if host.local_ports is not None and host.local_ports < config.limits.concurrent:
        yield FleetFinding(
            "warning",
            f"{host.local_ports:,} local ports for {config.limits.concurrent:,} requests to one engine",
            "beyond it engines cannot be connected to",
            'sysctl -w net.ipv4.ip_local_port_range="1024 65535"',
            (),
            subject.place("limits", "concurrent"),
        )


def check_memory(subject: Subject) -> Iterator[FleetFinding]:
    """Bodies, prompts and index at their limits fit into the memory, and there is a core for every worker."""
    host, config = subject.host, subject.config
    if config is None:
        return
    wanted = config.limits.body_budget_bytes + config.tokens.memory_bytes + ROUTER_BYTES
    if host.memory_bytes is not None and host.memory_bytes < wanted:
        budget = max(64 * 1024 * 1024, host.memory_bytes - config.tokens.memory_bytes - ROUTER_BYTES)
        yield FleetFinding(
            "warning",
            f"the memory limit is {_mib(host.memory_bytes)}, and bodies, prompts and index may take {_mib(wanted)}",
            "the kernel kills the router when it is busiest",
            f"body_budget_bytes: {budget}, or a higher memory limit",
            (),
            subject.place("limits", "body_budget_bytes"),
            Edit(("limits", "body_budget_bytes"), budget),
        )
    if host.cores is not None and config.workers > host.cores:
        yield FleetFinding(
            "warning",
            f"{config.workers} workers on {host.cores} cores",
            "they wait for each other, and every one keeps the index",
            f"workers: {host.cores}",
            (),
            subject.place("workers"),
            Edit(("workers",), host.cores),
        )


def check_keepalive(subject: Subject) -> Iterator[FleetFinding]:
    """The router closes idle connections before engines do."""
    if subject.config is None or subject.config.limits.keepalive_s < ENGINE_KEEPALIVE_S:
        return
    yield FleetFinding(
        "fault",
        f"idle connections are kept for {subject.config.limits.keepalive_s:g} s, and engines close theirs after "
        f"{ENGINE_KEEPALIVE_S:g} s",
        "a request that is sent at that moment fails, or is sent twice",
        "keepalive_s: 4",
        (),
        subject.place("limits", "keepalive_s"),
        Edit(("limits", "keepalive_s"), 4.0),
    )


def check_load_balancer(subject: Subject) -> Iterator[FleetFinding]:
    """Clients are distinguished, whatever is in front of the router."""
    for router in subject.routers:
        records = [record for record in router.records if record.get("sender")]
        senders = {str(record["sender"]) for record in records}
        sessions = {record.get("session") for record in records} - {None}
        named = any(record.get("client") for record in records)
        trusted = subject.config is not None and subject.config.listen.trusted_proxies
        if len(senders) != 1 or named or trusted or len(sessions) < MIN_SESSIONS:
            continue
        (sender,) = senders
        concurrent = 2048 if subject.config is None else subject.config.limits.concurrent
        more = f"; let it open {concurrent:,} connections" if concurrent > ENVOY_CONNECTIONS else ""
        yield FleetFinding(
            "warning",
            f"{len(sessions)} sessions come from one address, {sender}: it may be a load balancer",
            "if it is one, all clients share the limits of one, and one of them can use them up for all",
            f'trusted_proxies: ["{sender}"]  # or its network{more} (Envoy: {ENVOY_CONNECTIONS} by default)',
            (router.url,),
            subject.place("listen", "trusted_proxies"),
        )


def _mib(size: int) -> str:
    return f"{size // (1024 * 1024):,} MiB"


CHECKS = (
    Check("limits.files", "files for as many requests as may run", "configuration", check_files),
    Check("limits.keepalive", "idle connections are closed before engines do it", "configuration", check_keepalive),
    Check("limits.kernel", "backlog and local ports for as many connections", "configuration", check_kernel),
    Check("limits.memory", "what may be held fits into memory, workers onto cores", "configuration", check_memory),
    Check("limits.load_balancer", "clients are told apart behind a load balancer", "router", check_load_balancer),
)
