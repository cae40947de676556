"""Faults that fail no request and show in no answer: hits become rare, and prefills more.

Each function judges one fact, which the doctor gathers by itself and a running router has anyway. So both report a
fault in the same words: the doctor prints it, the router logs it and shows it at the engine
(`control/fault_watch.py`). Whoever calls knows the fact: what is unknown is no fault.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from router.config.sections.base import url_host
from router.errors import list_names
from router.fleet.engine_facts import EventEndpoint

PREFIX_CACHING = "engines.prefix_caching"
EVENTS_ON = "events.on"
EVENTS_REACHABLE = "events.reachable"
EVENTS_ARRIVING = "events.arriving"
TOKENIZER_MODELS = "tokens.models"

EVENTS_FLAG = '--kv-events-config \'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\''
LOST_HITS = "the router guesses from what it sent there, and loses hits"
SLOWER_IDS = "the router queries engines for the ids of every prompt: a round trip each, and none when they are slow"


class SilentFault(NamedTuple):
    """One fault. Texts are one line each."""

    check: str  # the doctor's check, as in docs/operate/doctor.md
    what: str  # what was found, with a verb
    why: str  # the consequence
    change: str  # what to write where; `engine:` is that engine's command line


def judge_prefix_caching(on: bool) -> SilentFault | None:
    """Judge whether an engine keeps prefixes, as its metrics page reports."""
    if on:
        return None
    why, change = "no request can hit a cache there", "engine: --enable-prefix-caching"
    return SilentFault(PREFIX_CACHING, "prefix caching is off", why, change)


def judge_sources(url: str, sources: Sequence[EventEndpoint] | None) -> SilentFault | None:
    """Judge the answer to `GET /kv_event_sources` of the engine at `url`. None: its version has no such path."""
    if sources is None:
        host = url_host(urlsplit(url).hostname or "")
        what = "this version cannot say where it publishes KV events"
        change = f'kv_events: [{{endpoint: "tcp://{host}:5557", replay_endpoint: "tcp://{host}:5657"}}]'
        return SilentFault(EVENTS_ON, what, LOST_HITS, change)
    return None if sources else SilentFault(EVENTS_ON, "KV events are off", LOST_HITS, f"engine: {EVENTS_FLAG}")


def judge_publishers(unanswered: Sequence[str]) -> SilentFault | None:
    """Judge an engine of whose event endpoints `unanswered` have no ZeroMQ publisher."""
    if not unanswered:
        return None
    change = "open that port between router and engine, or write where it publishes: kv_events: [{endpoint: ...}]"
    return SilentFault(EVENTS_REACHABLE, f"no publisher answers at {list_names(unanswered)}", LOST_HITS, change)


def judge_arrival(silent: Sequence[EventEndpoint]) -> SilentFault | None:
    """Judge an engine that computed prompts of which nothing was announced at the endpoints `silent`."""
    if not silent:
        return None
    topic = next((source.topic for source in silent if source.topic), "")
    where = list_names([source.endpoint for source in silent]) + (f" with topic {topic!r}" if topic else "")
    what = f"a prompt was computed, and no event came from {where}"
    change = 'topic: ""  # all topics' if topic else f"engine: {EVENTS_FLAG}"
    return SilentFault(EVENTS_ARRIVING, what, LOST_HITS, change)


def judge_tokenizer(
    model: str, served: Collection[str], adapters: Collection[str], configured: Collection[str]
) -> SilentFault | None:
    """Judge the key `model` of the section `tokenizers`, which has `configured`, by what all engines serve: base
    models and adapters.
    """
    if model in served:
        return None
    others = sorted(set(served) - set(configured))
    what = "an adapter" if model in adapters else "a model that no engine serves"
    hint = f"write {others[0]}" if others else "remove it"
    change = f"{hint}  # the key is the base model's name, as in GET /v1/models of an engine"
    return SilentFault(TOKENIZER_MODELS, f"tokenizers has {model}, which is {what}", SLOWER_IDS, change)
