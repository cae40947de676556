"""What must hold at the end of every run, whatever the faults were. Each check returns what does not, in words."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from router.app import App
from router.config.sections.clients import TenantLimits
from router.control.peers.scheduler import PeerScheduler
from router.features.admission.feature import AdmissionFeature
from router.features.tenants.feature import TenantsFeature
from router.fleet.instance import Target
from router.fleet.worker_share import NO_SHARE
from tests.simulation.clients import Clients, PlayedRequest
from tests.simulation.engines import PORT, EngineHost
from tests.simulation.loop import VirtualLoop
from tests.simulation.oracle import Oracle, RightAnswer
from tests.simulation.routers import RouterHost

KEPT_RECORDS = 100_000  # more than a run has requests
HASH_BITS = (1 << 60) - 1  # of an engine's hash, that the index keeps


def check_answers(clients: Clients, routers: Sequence[RouterHost], oracle: Oracle) -> Iterator[str]:
    """Every request ended once: with the right answer, or with a clean error; unless its router went down."""
    by_name = {router.name: router for router in routers}
    if clients.open:
        yield f"{clients.open} requests have not ended"
    for sent in clients.sent:
        where = f"request of {sent.sent_s:.3f} s to {sent.ended_s:.3f} s, record {sent.reply.record}"
        if (wrong := _find_fault(sent, oracle.answer(sent.path, sent.body))) is not None:
            yield f"{where}: {wrong}"
        ended = sent.reply.finished or sent.reply.error() or sent.left
        if not ended and not by_name[sent.router].was_down(sent.sent_s, sent.ended_s):
            yield f"{where}: it ended with neither an answer nor an error: {sent.reply}"


def _find_fault(sent: PlayedRequest, right: RightAnswer) -> str | None:
    """Return what is wrong with an answer as far as it goes; None: nothing."""
    text, finish, usage = "", None, None
    for chunk in sent.reply.chunks() if sent.reply.status == 200 else ():
        for choice in chunk.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or choice
            text += said.get("content", said.get("text")) or ""
            finish = choice["finish_reason"] or finish
        usage = chunk.get("usage") or usage
    if not right.text.startswith(text):
        return f"the answer is not the engine's: {text!r} instead of {right.text!r}"
    if not sent.reply.finished or sent.reply.error():
        return None
    if (text, finish) != (right.text, right.finish):
        return f"the answer is not whole: {text!r} {finish} instead of {right.text!r} {right.finish}"
    counted = None if usage is None else (usage["prompt_tokens"], usage["completion_tokens"])
    if counted != (right.prompt_tokens, right.output_tokens):
        return f"usage {counted} instead of {right.prompt_tokens, right.output_tokens}"
    return None


def check_quiet(routers: Sequence[RouterHost], engines: Sequence[EngineHost]) -> Iterator[str]:
    """Nothing is under way: all books are empty, and every router knows exactly what each engine holds."""
    for engine in engines:
        if engine.busy:
            yield f"{engine.name}: it is busy"
    for router in routers:
        assert router.app is not None
        for what in (*_check_own_books(router.app), *_check_all_books(router.app), *_check_index(router.app, engines)):
            yield f"{router.name}: {what}"
    yield from _check_agreement(routers)
    for router in routers:
        for app in router.lives[:-1]:
            for what in _check_own_books(app):
                yield f"a former process of {router.name}: {what}"


def _check_own_books(app: App) -> Iterator[str]:
    """The process has nothing in progress and nothing booked itself."""
    limiter, scheduler = app.services.limiter, app.core.scheduler
    assert isinstance(scheduler, PeerScheduler)
    if limiter.in_flight or limiter.held_bytes:
        yield f"{limiter.in_flight} requests in progress, which hold {limiter.held_bytes} bytes"
    if app.core.stuck_engines._attempts:
        yield f"open attempts: {app.core.stuck_engines._attempts}"
    for target in _targets(app):
        if (own := scheduler.own_share(target.id)) != NO_SHARE:
            yield f"booked at {target.id}: {own}"
    tenants = app.features.get("tenants")
    for name, account in tenants.metering.ledger._accounts.items() if isinstance(tenants, TenantsFeature) else ():
        if account.open:
            yield f"tenant {name} has requests in progress: {account.open}"


def _check_all_books(app: App) -> Iterator[str]:
    """The router is connected to every other one in both directions, agrees with it, and knows nothing in progress at
    any.
    """
    peers = app.core.peers
    assert peers is not None
    for target in _targets(app):
        if (others := peers.share_of_far(target.id)) != NO_SHARE:
            yield f"booked at {target.id} by peers: {others}"
    for report in peers.describe():
        if not (report.own or (report.up and report.same_policies and report.same_instances)):
            yield f"peer: {report}"
    admission, tenants = app.features["admission"], app.features.get("tenants")
    assert isinstance(admission, AdmissionFeature)
    for admitted in admission.queues:
        state = admitted.state(listed=1)
        if any(state.queued.values()) or any(share.running for share in state.shares):
            yield f"waiting for admission: {state.queued}, running: {state.shares}"
    if isinstance(tenants, TenantsFeature):
        ledger = tenants.metering.ledger
        for name in ledger.tenants():
            for limit, use in ledger.use(name, ledger.last_limits(name) or TenantLimits()).items():
                if use.used:
                    yield f"tenant {name} uses {use.used} of its {limit}"


def _check_agreement(routers: Sequence[RouterHost]) -> Iterator[str]:
    """All routers have the same policy in force, and the same instances drained."""
    apps = [router.app for router in routers if router.app is not None]
    for what, seen in (
        ("policy in force", [app.core.control.policy_set.active for app in apps]),
        ("drained instances", [[one.config.url for one in app.core.scheduler.fleet if one.drained] for app in apps]),
    ):
        if any(one != seen[0] for one in seen):
            yield f"the routers disagree on the {what}: {seen}"


def _targets(app: App) -> list[Target]:
    return [target for instance in app.core.scheduler.fleet for target in instance.targets.values()]


def _check_index(app: App, engines: Sequence[EngineHost]) -> Iterator[str]:
    indexer = app.core.scheduler.indexer
    for engine in engines:
        instance = next(one for one in app.core.scheduler.fleet if one.config.url == engine.url)
        saved = indexer.snapshot(instance.targets[0].id)
        held: Counter[int] = Counter()
        for table in () if saved is None else saved.blocks.tables:
            held.update(array("Q", table.hashes + table.unnamed))
            for label, copies in zip(array("Q", table.copied), array("Q", table.copies), strict=True):
                held[label] += copies
        truth = Counter({label & HASH_BITS: copies for label, copies in engine.cached().items()})
        missing, wrong = truth - held, held - truth
        if wrong or (missing and engine.lossless):
            counts = f"{missing.total()} blocks missing, {wrong.total()} too many of {truth.total()}"
            yield f"index of {engine.name}: {counts}"


def check_counters(
    clients: Clients, routers: Sequence[RouterHost], engines: Sequence[EngineHost], oracle: Oracle
) -> Iterator[str]:
    """Clients, routers and engines agree on what was answered. Call it when all have stopped."""
    lives = [app for router in routers for app in router.lives]
    answered = sum(sent.reply.whole for sent in clients.sent)
    counted = sum(sum(app.core.metrics._requests.values()) for app in lives)
    if not answered <= counted <= len(clients.sent):
        yield f"routers counted {counted} requests, clients have {answered} answers to {len(clients.sent)}"
    records = {record.id: record for app in lives for record in app.core.recent_records.latest(KEPT_RECORDS)}
    for sent in clients.sent:
        if sent.reply.finished:
            record, right = records[sent.reply.record or ""], oracle.answer(sent.path, sent.body)
            tokens = record.prompt_tokens, record.output_tokens
            if not record.done or record.error or tokens != (right.prompt_tokens, right.output_tokens):
                yield f"record {record.id} of a whole answer: done {record.done}, {record.error}, tokens {tokens}"
    for record in records.values():
        if not record.done:
            yield f"record {record.id} is not done"
    attempts = [attempt for record in records.values() for attempt in record.attempts]
    for engine in engines:
        well = sum(one.end == "ok" and one.decision.target == f"{engine.name}:{PORT}/0" for one in attempts)
        if well > engine.finished:  # which also answered the routers' own requests, and clients that left
            yield f"{engine.name}: it finished {engine.finished} answers, routers got {well}"


def check_stopped(loop: VirtualLoop) -> Iterator[str]:
    """Nothing is left of the processes that were stopped."""
    for task in asyncio.all_tasks(loop) - {asyncio.current_task(loop)}:
        yield f"task {task.get_name()} is left"
    if loop.network.open_ends:
        yield f"{loop.network.open_ends} ends of connections are left"
