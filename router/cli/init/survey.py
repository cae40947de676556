"""Describe the survey of an engine in words, and recommend the options to turn on at the engine."""

from __future__ import annotations

from typing import NamedTuple

from router.operate.doctor.survey import EngineSurvey

EVENTS = (
    '{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}'
)


class Advice(NamedTuple):
    """A change of the engine's command line, and the reason for it."""

    flags: str
    reason: str


def describe_engine(survey: EngineSurvey) -> list[str]:
    """Return the facts of an engine that answered, one line per subject."""
    adapters = [card.id for card in survey.cards if card.parent is not None]
    ranks = [gauges for _, gauges in sorted(survey.gauges.items())]
    blocks = next((gauges.block_tokens for gauges in ranks if gauges.block_tokens), None)
    capacity = [gauges.capacity_tokens for gauges in ranks if gauges.capacity_tokens]
    facts = [
        f"vLLM {survey.version or 'of unknown version'}, model {survey.model}",
        f"{len(ranks)} ranks" if len(ranks) > 1 else "",
        f"blocks of {blocks:,} tokens" if blocks else "block size unknown",
        f"KV cache of {sum(capacity):,} tokens" if capacity else "",
        f"adapters {', '.join(adapters)}" if adapters else "",
    ]
    return [", ".join(fact for fact in facts if fact), *_describe_events(survey), _describe_cached_tokens(survey)]


def _describe_events(survey: EngineSurvey) -> list[str]:
    if survey.sources is None:
        return ["KV events: unknown; this version has no GET /kv_event_sources"]
    if not survey.sources:
        return ["KV events: off"]
    lines = []
    for source in survey.sources:
        replay = f"replay at {source.replay_endpoint}" if source.replay_endpoint else "replay off"
        refused = [end for end in (source.endpoint, source.replay_endpoint) if end in survey.unreachable]
        trouble = f"; not reachable from here: {', '.join(map(str, refused))}" if refused else ""
        lines.append(f"KV events: rank {source.rank} at {source.endpoint}, {replay}{trouble}")
    return lines


def _describe_cached_tokens(survey: EngineSurvey) -> str:
    states = {True: "on", False: "off", None: "unknown"}
    return f"cached_tokens in usage: {states[survey.cached_tokens]}"


def recommend(survey: EngineSurvey) -> list[Advice]:
    """Return the options that the engine lacks for exact cache knowledge."""
    advice = []
    if survey.prefix_caching is False:
        advice.append(Advice("--enable-prefix-caching", "without it no request can hit a cache"))
    if survey.sources is None or not survey.sources:
        reason = "the router then knows each cached block; without events it remembers what it sent"
        advice.append(Advice(f"--kv-events-config '{EVENTS}'", reason))
    elif any(source.replay_endpoint is None for source in survey.sources):
        reason = "after a lost event or a restart of the router, replay restores what it knows"
        advice.append(Advice('"replay_endpoint": "tcp://*:5657" in --kv-events-config', reason))
    if survey.cached_tokens is False:
        reason = "the router then compares each predicted hit with the delivered one"
        advice.append(Advice("--enable-prompt-tokens-details", reason))
    if not survey.gauges:
        advice.append(Advice("no --disable-log-stats", "the router reads queue lengths and cache size from /metrics"))
    return advice
