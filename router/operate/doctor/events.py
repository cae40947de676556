"""Check the KV events of each engine: they are on, arrive at the expected endpoints, come from the expected engine,
and can be replayed.

Without KV events nothing fails: hits become guesses, and the first sign is a higher bill. So a prompt is sent to
every rank, and the announcement of its blocks must be received.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from router.config.sections.base import WILDCARDS
from router.fleet.engine_facts import EventEndpoint
from router.fleet.silent_fault import (
    EVENTS_ARRIVING,
    EVENTS_ON,
    EVENTS_REACHABLE,
    LOST_HITS,
    judge_arrival,
    judge_publishers,
    judge_sources,
)
from router.operate.doctor.check import Check
from router.operate.doctor.finding import FleetFinding, report
from router.operate.doctor.probe import configured_endpoints
from router.operate.doctor.subject import ExaminedEngine, StreamProbe, Subject

CLOCK_S = 5.0


def check_on(subject: Subject) -> Iterator[FleetFinding]:
    """Events are on, or off on purpose (`kv_events: off`)."""
    for engine in _with_events(subject):
        survey = engine.usable
        if survey is None or isinstance(engine.config.kv_events, list):
            continue
        if (fault := judge_sources(engine.config.url, survey.sources)) is not None:
            yield report(fault, (engine.name,), engine.place("kv_events") if survey.sources is None else None)


def check_address(subject: Subject) -> Iterator[FleetFinding]:
    """The engine binds its event ports: vLLM connects instead of binding if the endpoint has no `*`."""
    for engine in _with_events(subject):
        survey = engine.usable
        for endpoint in survey.announced if survey is not None else ():
            if not endpoint.startswith("tcp://") or "*" in endpoint or "::" in endpoint:
                continue
            port = endpoint.rpartition(":")[2]
            host = endpoint.removeprefix("tcp://").rpartition(":")[0]
            refused = survey is not None and any(_port(end) == port for end in survey.unreachable)
            if host in WILDCARDS or refused:
                yield FleetFinding(
                    "fault",
                    f'its event endpoint is "{endpoint}": vLLM connects to a host instead of binding the port',
                    "nobody publishes there, and nothing says so",
                    f'engine: "endpoint": "tcp://*:{port}" in --kv-events-config',
                    (engine.name,),
                )


def check_reachable(subject: Subject) -> Iterator[FleetFinding]:
    """A publisher answers at every endpoint to which the router subscribes."""
    for engine in _with_events(subject):
        if (survey := engine.usable) is None or _is_misbound(engine):
            continue
        if engine.probe is not None:
            silent = [stream.endpoint for stream in engine.probe.streams if not stream.opened]
        else:
            configured = configured_endpoints(engine.config, survey)
            silent = [source.endpoint for source in configured if source.endpoint in survey.unreachable]
        if (fault := judge_publishers(silent)) is None:
            continue
        edit, reported = None, [source.endpoint for source in survey.sources or ()]
        if isinstance(engine.config.kv_events, list) and reported and not {*silent} & {*reported}:
            fault = fault._replace(change=f"kv_events: auto  # the engine reports {', '.join(reported)}")
            edit = subject.edit(engine, "auto", "kv_events")
        yield report(fault, (engine.name,), engine.place("kv_events"), edit)


def check_arriving(subject: Subject) -> Iterator[FleetFinding]:
    """A prompt that was sent to a rank is announced on that rank's stream."""
    for engine, stream in _streams(subject):
        if not stream.opened or stream.own or not _is_answering(engine):
            continue
        survey = engine.usable
        if survey is not None and survey.prefix_caching is False:
            continue
        if stream.found_at is not None:
            yield _foreign(subject, engine, stream)
        elif stream.batches:
            yield FleetFinding(
                "fault",
                f"events of rank {stream.rank} arrive, but not of the prompt that was sent",
                "its hits are unknown to the router",
                "see tokens.agree; or another engine publishes at this endpoint",
                (engine.name,),
                engine.place("kv_events"),
            )
        elif (fault := judge_arrival([_source_of(stream)])) is not None:
            place = engine.place("kv_events", *_source_key(engine, stream, "topic"))
            yield report(fault, (engine.name,), place, _topic_edit(subject, engine, stream))


def check_ranks(subject: Subject) -> Iterator[FleetFinding]:
    """Every data-parallel rank has a stream."""
    for engine in _with_events(subject):
        survey = engine.usable
        if survey is None:
            continue
        endpoints = {endpoint.rank: endpoint for endpoint in configured_endpoints(engine.config, survey)}
        missing = sorted(survey.gauges.keys() - endpoints.keys())
        if missing and endpoints:
            base, _, port = endpoints[min(endpoints)].endpoint.rpartition(":")
            example = f"{base}:{int(port) + missing[0] - min(endpoints)}" if port.isdecimal() else "tcp://HOST:PORT"
            listed = ", ".join(map(str, missing))
            change = (
                f'kv_events: add {{rank: {missing[0]}, endpoint: "{example}"}}  # the port is rank 0\'s plus the rank'
            )
            yield FleetFinding(
                "fault",
                f"rank {listed} has no event stream",
                LOST_HITS,
                change,
                (engine.name,),
                engine.place("kv_events"),
            )


def check_replay(subject: Subject) -> Iterator[FleetFinding]:
    """Missed events can be requested again."""
    for engine, stream in _streams(subject):
        if stream.replay_endpoint is None and stream.opened:
            in_file = isinstance(engine.config.kv_events, list) and any(
                source.replay_endpoint for source in (engine.usable.sources or () if engine.usable else ())
            )
            change = (
                "replay_endpoint: the engine's"
                if in_file
                else 'engine: "replay_endpoint": "tcp://*:5657" in --kv-events-config'
            )
            yield FleetFinding(
                "warning",
                "lost events cannot be replayed",
                "one lost message, or a restart of the router, makes it forget everything that the engine holds",
                change,
                (engine.name,),
                engine.place("kv_events") if in_file else None,
            )
        elif stream.replay == "silent":
            yield FleetFinding(
                "fault",
                f"replay requests to {stream.replay_endpoint} are not answered",
                "one lost message, or a restart of the router, makes it forget everything that the engine holds",
                "open that port between router and engine, or mend replay_endpoint",
                (engine.name,),
                engine.place("kv_events"),
            )


def check_readable(subject: Subject) -> Iterator[FleetFinding]:
    """Messages can be decoded."""
    for engine, stream in _streams(subject):
        if stream.malformed:
            yield FleetFinding(
                "fault",
                f"{stream.malformed} messages from {stream.endpoint} are not KV events of vLLM",
                "what they announced is unknown",
                "look what publishes there; see warmroute_stream_malformed_total",
                (engine.name,),
                engine.place("kv_events"),
            )


def check_clocks(subject: Subject) -> Iterator[FleetFinding]:
    """The engines' clocks agree with this machine's to some seconds."""
    for engine, stream in _streams(subject):
        ahead_s = stream.clock_ahead_s
        if ahead_s is not None and abs(ahead_s) > CLOCK_S:
            way = "ahead of" if ahead_s > 0 else "behind"
            yield FleetFinding(
                "warning",
                f"its clock is {abs(ahead_s):.0f} s {way} this machine's",
                "the lag of its events cannot be measured, and logs of a request do not line up",
                "engine's machine: start chrony or systemd-timesyncd",
                (engine.name,),
            )


def _foreign(subject: Subject, engine: ExaminedEngine, stream: StreamProbe) -> FleetFinding:
    """Return the finding for a prompt that was announced on another stream than expected."""
    other = (stream.found_at or "").rpartition("/")[0]
    if other == engine.name:
        rank = (stream.found_at or "").rpartition("/")[2]
        what = f"events of rank {stream.rank} are published where those of rank {rank} are expected"
    else:
        what = f"its events are published where those of {other} are expected"
    own = next((s for s in (engine.usable.sources or () if engine.usable else ()) if s.rank == stream.rank), None)
    right = own.endpoint if own is not None else "its own endpoint"
    return FleetFinding(
        "fault",
        what,
        "each of the two is sent requests for what the other has cached",
        f"endpoint: {right}  # not {stream.endpoint}",
        (engine.name,),
        engine.place("kv_events", *_source_key(engine, stream, "endpoint")),
        None if own is None else _source_edit(subject, engine, stream, "endpoint", own.endpoint),
    )


def _source_of(stream: StreamProbe) -> EventEndpoint:
    return EventEndpoint(stream.rank, stream.endpoint, stream.replay_endpoint, stream.topic)


def _source_key(engine: ExaminedEngine, stream: StreamProbe, key: str) -> tuple[str | int, ...]:
    """Return the path, below `kv_events`, to a key of the stream's source. Empty if that source is not listed."""
    sources = engine.config.kv_events
    if not isinstance(sources, list):
        return ()
    return next(((i, key) for i, source in enumerate(sources) if source.rank == stream.rank), ())


def _source_edit(subject: Subject, engine: ExaminedEngine, stream: StreamProbe, key: str, value: Any) -> Any:
    path = _source_key(engine, stream, key)
    return subject.edit(engine, value, "kv_events", *path) if path else None


def _topic_edit(subject: Subject, engine: ExaminedEngine, stream: StreamProbe) -> Any:
    return _source_edit(subject, engine, stream, "topic", "") if stream.topic else None


def _with_events(subject: Subject) -> Iterator[ExaminedEngine]:
    """Yield the usable engines, except those with `kv_events: off` or with prefix caching off."""
    for engine in subject.usable:
        if engine.config.kv_events != "off" and engine.usable is not None and engine.usable.prefix_caching is not False:
            yield engine


def _streams(subject: Subject) -> Iterator[tuple[ExaminedEngine, StreamProbe]]:
    for engine in _with_events(subject):
        for stream in engine.probe.streams if engine.probe is not None else ():
            yield engine, stream


def _is_answering(engine: ExaminedEngine) -> bool:
    return bool(engine.answered_kinds)


def _is_misbound(engine: ExaminedEngine) -> bool:
    survey = engine.usable
    return survey is not None and any("*" not in endpoint for endpoint in survey.announced) and bool(survey.unreachable)


def _port(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]


CHECKS = (
    Check(EVENTS_ON, "KV events are on, or off in the configuration", "engines", check_on),
    Check("events.address", "the engine binds its event ports (`tcp://*`, no host)", "engines", check_address),
    Check(EVENTS_REACHABLE, "a publisher answers at each endpoint", "prompts", check_reachable),
    Check("events.ranks", "each data-parallel rank has a stream", "engines", check_ranks),
    Check(EVENTS_ARRIVING, "a prompt is announced, on the stream of its engine", "prompts", check_arriving),
    Check("events.readable", "messages can be decoded", "prompts", check_readable),
    Check("events.replay", "missed events are replayed on request", "prompts", check_replay),
    Check("events.clocks", "clocks agree to 5 s", "prompts", check_clocks),
)
