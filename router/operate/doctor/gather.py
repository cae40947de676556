"""Gather the facts that the checks read: from the configuration, routers, engines, masters and this machine.

    routers                  their admin APIs, which also name engines that the configuration does not
    engines                  what they report; then their tokenizers against ours; then real prompts
    masters, bootstrap       whether they answer, and which master leads
    this machine             its limits

Facts are gathered concurrently, and every query has its own timeout, so that the whole takes less than half a
minute whatever hangs. A query without an answer in time is recorded in `Subject.unfinished`, and reported as not
examined.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from router.backends.discovery.discovery import DiscoveredInstance
from router.backends.discovery.dns import DnsDiscovery
from router.backends.discovery.kubernetes.discovery import KubernetesDiscovery
from router.backends.feeds.jitter import Jitter
from router.backends.remote_tokenizer import EngineTokenizer
from router.backends.vllm.disaggregation import read_engine_ids
from router.clock import Clock
from router.config.reader import load_instances, read_all
from router.config.schema import Config, InstanceConfig, TokensConfig
from router.config.yaml_source import load, read_text
from router.features.pool.leader import read_health
from router.features.pool.query import KEY_COUNT, LISTING_BYTES, MAX_LISTED_KEYS
from router.kvcache.block_keys import Keyring
from router.operate.doctor.clients import HttpClients
from router.operate.doctor.hashes import find_saved, first_blocks
from router.operate.doctor.host import read_host
from router.operate.doctor.listener import EventListener
from router.operate.doctor.probe import EngineProber
from router.operate.doctor.router_answers import ask_router, scrape
from router.operate.doctor.subject import ExaminedEngine, MasterAnswers, Subject, TokenizerProof
from router.operate.doctor.survey import read_starts, survey_engine
from router.prompt.tokenization.model_folder import load_all
from router.prompt.tokenization.probes import TEXTS
from router.prompt.tokenization.tokenization import Tokenization

T = TypeVar("T")

ASK_TIMEOUT_S = 4.0  # for one answer
LIST_TIMEOUT_S = 4.0  # for a source of engines
SURVEY_TIMEOUT_S = 6.0
PROVE_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 14.0
POOL_TIMEOUT_S = 3.0  # until blocks that an engine has just computed are in the pool, and listed
POOL_PAUSE_S = 0.2
PROBES_AT_ONCE = 32  # engines


class DoctorOptions(NamedTuple):
    """The subjects and the manner of an examination."""

    config: Path | None
    urls: tuple[str, ...] = ()  # admin listeners of running routers
    token: str | None = None  # bearer token for `urls`
    api_key: str | None = None  # sent to engines that only a router names
    passive: bool = False  # send no prompts
    engines: frozenset[str] | None = None  # examine only these of the listed engines; None: all
    ca_file: str | None = None  # certificates to trust where the configuration names none; None: the system's CAs


class _Work(NamedTuple):
    """The state that the steps share: the facts so far, the clients and the clock."""

    subject: Subject
    clients: HttpClients
    clock: Clock
    only: frozenset[str] | None  # the engines to examine; None: all
    ca_file: str | None  # of engines and routers for which the configuration names none


async def gather_facts(options: DoctorOptions, clock: Clock) -> Subject:
    """Gather everything. Raises ConfigError for a configuration that cannot be read."""
    subject = Subject(passive=options.passive, host=read_host())
    if options.config is not None:
        subject.text = read_text(options.config)
        subject.document = load(options.config)
        subject.read = read_all(options.config)
    clients = HttpClients(ASK_TIMEOUT_S)
    work = _Work(subject, clients, clock, options.engines, options.ca_file)
    try:
        await asyncio.gather(_ask_routers(work, options), _list_engines(work))
        _add_engines_of_routers(work, options.api_key)
        await asyncio.gather(
            *(_within(work, engine.name, SURVEY_TIMEOUT_S, _survey(work, engine)) for engine in subject.engines),
            _ask_masters(work),
        )
        await _examine_usable(work)
        await _within(work, "pool", POOL_TIMEOUT_S, _list_pool(work))
        await asyncio.gather(*(_scrape_again(work, i) for i in range(len(subject.routers))))
    finally:
        await clients.close()
    return subject


async def _within(work: _Work, name: str, timeout_s: float, question: Awaitable[T]) -> T | None:
    """Return the answer. None if it takes longer than `timeout_s`; `name` is then recorded as unfinished."""
    try:
        async with asyncio.timeout(timeout_s):
            return await question
    except TimeoutError:
        work.subject.unfinished.append(name)
        return None


# routers


async def _ask_routers(work: _Work, options: DoctorOptions) -> None:
    for url in options.urls:
        work.clients.add(url, url, token=options.token, ca_file=work.ca_file)
        work.clients.add(f"{url} open", url, ca_file=work.ca_file)
    config = work.subject.config
    has_token = options.token is not None
    ask = partial(ask_router, work.clients, config=config, has_token=has_token, ca_file=work.ca_file)
    work.subject.routers = list(await asyncio.gather(*map(ask, options.urls)))


async def _scrape_again(work: _Work, number: int) -> None:
    router = work.subject.routers[number]
    if router.metrics is not None:
        later = await scrape(work.clients, router.url, router.metrics_address, work.ca_file)
        work.subject.routers[number] = router._replace(later_metrics=later if isinstance(later, str) else None)


# engines


async def _list_engines(work: _Work) -> None:
    """List the engines of the configuration, with the lines that name them."""
    subject, config = work.subject, work.subject.config
    if config is None:
        return
    for i, instance in enumerate(config.fleet.instances):
        path = ("fleet", "instances", i)
        _add_engine(work, ExaminedEngine(instance, subject.document, path), _key_of(instance))
    if config.fleet.file is not None:
        listed = load_instances(config.fleet.file)
        for i, instance in enumerate(listed.instances):
            _add_engine(work, ExaminedEngine(instance, listed.document, (i,)), _key_of(instance))
    sources: list[tuple[str, AsyncIterator[list[DiscoveredInstance]]]] = []
    if config.fleet.dns is not None:
        sources.append(("dns", DnsDiscovery(config.fleet.dns, work.clock).watch()))
    if config.fleet.kubernetes is not None:
        found = KubernetesDiscovery(config.fleet.kubernetes, work.clock, Jitter(secrets.randbits(32) / 2**32))
        sources.append(("kubernetes", found.watch()))
    for name, source in sources:
        first: Awaitable[list[DiscoveredInstance]] = anext(source)
        listed_there = await _within(work, f"fleet.{name}", LIST_TIMEOUT_S, first)
        for discovered in listed_there or ():
            engine = ExaminedEngine(discovered.config, subject.document, ("fleet", name))
            _add_engine(work, engine, _key_of(discovered.config))


def _add_engines_of_routers(work: _Work, api_key: str | None) -> None:
    """Add the engines that only routers name."""
    known = {engine.config.url for engine in work.subject.engines}
    for router in work.subject.routers:
        for instance in router.instances:
            if instance["url"] not in known:
                known.add(instance["url"])
                config = InstanceConfig(url=instance["url"], name=instance["id"])
                _add_engine(work, ExaminedEngine(config), api_key)


def _add_engine(work: _Work, engine: ExaminedEngine, api_key: str | None) -> None:
    if work.only is not None and engine.name not in work.only:
        return
    work.subject.engines.append(engine)
    ca_file = engine.config.ca_file or work.ca_file
    work.clients.add(engine.name, engine.config.url, token=api_key, ca_file=ca_file)
    if engine.config.transfer is not None and engine.config.transfer.bootstrap_url is not None:
        work.clients.add(f"{engine.name} bootstrap", engine.config.transfer.bootstrap_url)


def _key_of(instance: InstanceConfig) -> str | None:
    return None if instance.api_key_env is None else os.environ.get(instance.api_key_env)


async def _survey(work: _Work, engine: ExaminedEngine) -> None:
    client = work.clients.get(engine.name)
    survey, starts = await asyncio.gather(survey_engine(client, engine.config.url), read_starts(client))
    engine.survey = survey._replace(starts=survey.starts | starts)
    if engine.config.transfer is not None and engine.config.transfer.bootstrap_url is not None:
        answer = await work.clients.fetch(f"{engine.name} bootstrap", "/query", timeout_s=2.0)
        ids = None if answer is None or answer.status != 200 else read_engine_ids(answer.body)
        no_answer = "no answer" if answer is None else f"GET /query: {answer.status}"
        engine.bootstrap = "" if ids else no_answer if ids is None else "GET /query names no engine"


async def _examine_usable(work: _Work) -> None:
    """Prove the tokenizers of the usable engines and, unless the examination is passive, send prompts."""
    subject, config = work.subject, work.subject.config or Config()
    loaded = await asyncio.to_thread(load_all, config.tokenizers, work.clock.wall)
    secret = secrets.randbits(64)
    settings = TokensConfig(budget_ms=ASK_TIMEOUT_S * 1000)  # the configured one may be too short under this load
    tokenization = Tokenization(settings, loaded, Keyring(secret), EngineTokenizer(work.clients.fetch), work.clock)
    listener = EventListener(work.clock, secret)
    prober = EngineProber(listener, tokenization, work.clock)
    turn = asyncio.Semaphore(PROBES_AT_ONCE)
    try:
        if not subject.passive:
            for engine in subject.usable:
                if engine.usable is not None:
                    prober.subscribe(engine.config, engine.usable)
        await asyncio.gather(*(_examine(work, engine, tokenization, prober, turn) for engine in subject.usable))
    finally:
        await listener.close()
        tokenization.close()


async def _examine(
    work: _Work, engine: ExaminedEngine, tokenization: Tokenization, prober: EngineProber, turn: asyncio.Semaphore
) -> None:
    if (survey := engine.usable) is None or survey.model is None:
        return
    async with turn:
        end_s = work.clock.now() + PROBE_TIMEOUT_S
        question = _prove(engine, survey.model, tokenization, work.clock.wall(), generates=not work.subject.passive)
        engine.proof = await _within(work, f"{engine.name} (tokenizer)", PROVE_TIMEOUT_S, question)
        if not work.subject.passive:
            client = work.clients.get(engine.name)
            engine.probe = await prober.probe(engine.config, survey, client, end_s - work.clock.now())
            work.subject.unfinished += [f"{engine.name} ({kind})" for kind in engine.probe.unfinished]


async def _prove(
    engine: ExaminedEngine, model: str, tokenization: Tokenization, wall_s: float, *, generates: bool
) -> TokenizerProof | None:
    """Compare our token ids with the engine's. None if its model has no local tokenizer, and no prompts may be
    sent or nothing could be compared.
    """
    local = tokenization.local_tokenizer(model) is not None
    if not local and not generates:
        return None
    agrees = await tokenization.verify(engine.name, model, generates=generates)
    report = tokenization.report()[model]
    date = report.dates.get(engine.name)
    daily_date = date if date is not None and _is_present(date, wall_s) else None
    if report.trouble is not None and (engine.name in report.refuted or not report.refuted):
        return TokenizerProof(1, no_ids=report.trouble, daily_date=daily_date)
    if agrees is None:
        return (
            TokenizerProof(0, engine_fails="its token ids were not answered, or it refused every chat")
            if local
            else None
        )
    differing = report.refuted.get(engine.name)
    return TokenizerProof(1, differing, differing is not None and differing not in TEXTS, daily_date=daily_date)


def _is_present(date: str, wall_s: float) -> bool:
    """Return whether it is this date now somewhere on Earth."""
    zones = (timezone(timedelta(hours=hours)) for hours in range(-12, 15))
    return date in {datetime.fromtimestamp(wall_s, zone).strftime("%Y-%m-%d") for zone in zones}


# masters


async def _ask_masters(work: _Work) -> None:
    config = work.subject.config
    if config is not None and config.pool is not None:
        work.subject.masters = list(await asyncio.gather(*(_ask_master(work, url) for url in config.pool.masters)))


async def _ask_master(work: _Work, url: str) -> MasterAnswers:
    work.clients.add(url, url)
    leads, trouble = read_health(await work.clients.fetch(url, "/health", timeout_s=ASK_TIMEOUT_S))
    return MasterAnswers(url, leads, trouble)


async def _list_pool(work: _Work) -> None:
    """Poll the pool's keys, a few times at most, until they have a block of every engine that computed prompts."""
    subject = work.subject
    leader = next((master.url for master in subject.masters if master.leads), None)
    saving = [e for e in subject.usable if e.config.role != "decode" and e.probe is not None and first_blocks(e)]
    if leader is None or not saving:
        return
    for _ in range(int(POOL_TIMEOUT_S / POOL_PAUSE_S) // 2):
        subject.pool_keys = await _list_keys(work.clients, leader)
        if subject.pool_keys is None or all(find_saved(subject.pool_keys, engine) for engine in saving):
            return
        await asyncio.sleep(POOL_PAUSE_S)


async def _list_keys(clients: HttpClients, url: str) -> tuple[str, ...] | None:
    page = await clients.fetch(url, "/metrics", timeout_s=ASK_TIMEOUT_S)
    count = None if page is None else KEY_COUNT.search(page.body)
    if count is None or int(count[1]) > MAX_LISTED_KEYS:
        return None
    listing = await clients.fetch(url, "/get_all_keys", timeout_s=ASK_TIMEOUT_S, limit_bytes=LISTING_BYTES)
    return None if listing is None or listing.status != 200 else tuple(listing.body.decode(errors="replace").split())
