"""Check running routers: they answer, and do not themselves report anything to be wrong."""

from __future__ import annotations

from collections.abc import Iterator

from router.operate.doctor.check import Check
from router.operate.doctor.finding import FleetFinding
from router.operate.doctor.subject import Json, RouterAnswers, Subject

SLOW = 1.5  # how many times slower than usual, as the alert WarmrouteEngineSlow has it
GUESSES = "the router guesses from what it sent there, and loses hits"
DISTRUSTED = "its events are ignored, so hits there are guesses"


def check_reachable(subject: Subject) -> Iterator[FleetFinding]:
    """Every admin listener answers."""
    for router in subject.routers:
        if router.error is not None:
            wants_token = "token" in router.error
            change = (
                "--token-env NAME  # variable with an admin token that may read"
                if wants_token
                else ("start the router, or mend --url: scheme, host and port of its admin listener")
            )
            why = "nothing is known of what it does"
            yield FleetFinding("unchecked" if wants_token else "fault", router.error, why, change, (router.url,))


def check_instances(subject: Subject) -> Iterator[FleetFinding]:
    """Every engine is ready, accepts requests, and sends no more than the router takes in."""
    for router, one in _instances(subject):
        at = (str(one["id"]),)
        if one["state"] in ("draining", "drained") or not one.get("accepting", True):
            why, change = "it gets no new requests", f"warmroute undrain {one['id']} --admin {router.url}"
            yield FleetFinding("warning", f"is {one['state']} in the router", why, change, at)
        elif one["state"] != "ready":
            reason = one.get("trouble") or "its health probes fail"
            why = "it is served all the same: no other can answer" if one.get("panic") else "it gets no requests"
            change = "see engines.reachable; the router must reach it, not only this machine"
            yield FleetFinding("fault", f"is {one['state']} in the router: {reason}", why, change, at)
        if one.get("distrusted"):
            change = "restart it, or look who writes to its ports; see docs/operate/security.md"
            yield FleetFinding(
                "fault", f"sent more than the router takes in: {one['distrusted']}", DISTRUSTED, change, at
            )


def check_targets(subject: Subject) -> Iterator[FleetFinding]:
    """Targets make progress at their usual speed, breakers are closed, event streams trusted, and the hits of real
    requests predicted.
    """
    for _, one in _instances(subject):
        for target in one.get("targets", ()):
            at = (str(target["id"]),)
            yield from _judge_progress(target, at)
            if (stream := target.get("stream")) is not None:
                yield from _judge_stream(stream, at, ready=one["state"] == "ready")
            yield from _judge_promises(target.get("promises") or {}, at)


def _judge_progress(target: Json, at: tuple[str, ...]) -> Iterator[FleetFinding]:
    if (stuck := target.get("stuck")) is not None:
        why = "it gets no requests, and those that it had are moved where another engine can take them"
        change = "restart it, after a stack dump (py-spy dump, cuda-gdb): its health probe may not show this"
        yield FleetFinding("fault", f"it is stuck: {stuck}", why, change, at)
    if (slowdown := target.get("slowdown", 1.0)) >= SLOW:
        why = "it gets fewer requests, and those that it gets wait longer"
        change = "compare nvidia-smi (clocks, throttling, Xid errors) and the CPU of its host with its peers"
        yield FleetFinding("warning", f"is {slowdown:.1f} times slower than it was", why, change, at)
    if target.get("breaker") == "open":
        why, change = "it gets no requests", "look at its log: three requests in a row failed there"
        yield FleetFinding("fault", "its circuit breaker is open", why, change, at)


def _judge_stream(stream: Json, at: tuple[str, ...], *, ready: bool) -> Iterator[FleetFinding]:
    if stream["state"] == "lost" and ready:
        change = "see events.reachable, events.arriving; the router must reach the ports"
        yield FleetFinding("fault", f"its event stream is {stream['state']} in the router", GUESSES, change, at)
    if stream.get("silent"):
        what = "its event stream stopped: it announces no new blocks"
        yield FleetFinding("fault", what, GUESSES, "see events.arriving; restart it if its publisher is dead", at)
    if stream["joined_late"] and (unplaced := stream.get("keyless_blocks")):
        yield FleetFinding(
            "warning",
            f"caches {unplaced} blocks after prompts that the router never saw announced",
            "the router joined late: hits there are found only as requests show them",
            "index.snapshot_file, and engines with more buffer_steps, so that a restart misses nothing",
            at,
        )
    if stream["replay_silent"]:
        what = f"replay requests to {stream['replay_endpoint']} are not answered to the router"
        why = "one lost message, or a restart of the router, makes it forget everything that the engine holds"
        change = "open that port between router and engine, or mend replay_endpoint"
        yield FleetFinding("fault", what, why, change, at)


def _judge_promises(promises: Json, at: tuple[str, ...]) -> Iterator[FleetFinding]:
    if promises.get("alarm"):
        change = "see tokens.agree, events.arriving and hits.agree"
        yield FleetFinding("fault", str(promises["alarm"]), "its hits are not used", change, at)
    elif promises.get("trusted") is False:
        why = "requests are sent for hits that do not happen; now it is guessed what is cached there"
        change = "see events.replay; if its cache is too small, docs/plan/capacity.md"
        yield FleetFinding("fault", "delivers less than its events promise, so they are not trusted", why, change, at)


def check_sources(subject: Subject) -> Iterator[FleetFinding]:
    """The lists of engines are current."""
    for router in subject.routers:
        for source, trouble in router.discovery.items():
            if trouble is not None:
                why, change = "engines that come and go are not noticed", f"fleet.{source}: mend the source"
                place = subject.place("fleet", source) if source != "config" else None
                yield FleetFinding(
                    "fault", f"the list of {source} is out of date: {trouble}", why, change, (router.url,), place
                )


def check_workers(subject: Subject) -> Iterator[FleetFinding]:
    """All processes are up and decide by the same policies."""
    for router in subject.routers:
        for worker in router.workers:
            at = (f"{router.url} worker {worker['number']}",)
            if not worker["up"]:
                why, change = "the others do its work", "look at the router's log; it is started again by itself"
                yield FleetFinding("fault", "a worker is down", why, change, at)
            if worker.get("trouble"):
                why = "it decides by other policies than the others"
                yield FleetFinding("fault", str(worker["trouble"]), why, "restart the router", at)


def check_replicas(subject: Subject) -> Iterator[FleetFinding]:
    """The routers in front of the same engines reach each other and agree."""
    for router in subject.routers:
        for other in router.replicas:
            yield from _judge_replica(router.url, other)


def _judge_replica(url: str, other: Json) -> Iterator[FleetFinding]:
    at = (url,)
    if other["own"]:
        return
    if (address := other["address"]) is None:
        if other.get("last_heard_s") is None:
            why, change = "neither knows the other's load", "give both the same version"
            yield FleetFinding("fault", f"a router (run {other['run']}) has another version", why, change, at)
            return
        why, change = "that one gets nothing of this one's load", f"add it to replicas.peers of {url}"
        yield FleetFinding("fault", f"a router (run {other['run']}) sends that is not in its list", why, change, at)
        return
    if not other["up"]:
        heard = other.get("last_heard_s") is not None
        silent = f"receives nothing from {address}"
        what = f"receives from the router at {address}, and gets no acknowledgements" if heard else silent
        why = "each decides without the other's requests, drains and switches"
        change = f"let both reach the other's replicas.port; the same secret (replicas.secret_env) at {address}"
        yield FleetFinding("fault", what, why, change, at)
    if other.get("same_policies") is False:
        why = "one fleet is decided by two policies"
        change = "compare GET /admin/policies of both: `errors.replicas`, and their files"
        yield FleetFinding("fault", f"has other policies in force than the router at {address}", why, change, at)
    if other.get("same_instances") is False:
        why = "an engine that has two names, or is known to one of them, has its load counted wrongly"
        change = "give both the same section fleet; set `name` where they reach an engine by different URLs"
        what = f"knows other engines than the router at {address}, which knows {other.get('instances')}"
        yield FleetFinding("fault", what, why, change, at)


def _instances(subject: Subject) -> Iterator[tuple[RouterAnswers, Json]]:
    for router in subject.routers:
        for one in router.instances:
            yield router, one


CHECKS = (
    Check("routers.reachable", "every admin listener answers", "router", check_reachable),
    Check("routers.instances", "every engine is ready and takes requests", "router", check_instances),
    Check("routers.targets", "breakers closed, events trusted, hits predicted", "router", check_targets),
    Check("routers.sources", "the lists of engines are current", "router", check_sources),
    Check("routers.workers", "all workers are up, with the same policies", "router", check_workers),
    Check("routers.replicas", "replicas reach each other and agree", "router", check_replicas),
)
