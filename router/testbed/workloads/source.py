"""`--workload X` as a workload: a preset by its name, or a file that holds a trace, made as big and as fast as wanted.

    codex | scaling | groups | tools            presets (`router/sim/workloads`)
    *.jsonl, *.jsonl.gz                         a Mooncake trace, or a file of our own decision log
    a folder                                    all of a decision log
    *.csv, *.csv.gz                             a trace of Azure's

Closed loops (`Workload.is_closed`) have sessions, turns and pauses; open ones have requests and a rate. What does not
apply is refused, and lines that cannot be used are told one by one: nothing is lost silently.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from router.config.validation_errors import describe_unknown
from router.errors import ConfigError, WarmrouteError
from router.telemetry.decision_log.format import LoggedRecord
from router.telemetry.decision_log.reader import UnreadableLine, read
from router.testbed.workloads import (
    PRESETS,
    AgentsWorkload,
    Preset,
    SharedPrefixWorkload,
    Workload,
    speed_up,
    take_first,
    take_window,
    traces,
)

NAMED_LINES = 5
SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz")
LEDGER_LINES = (b'{"file":', b'{"policy":', b'{"record":')


class WorkloadSpec(NamedTuple):
    """What was asked of the workload's size; None or 1.0: as it is."""

    rate: float | None = None  # requests per second, in the mean
    requests: int | None = None
    sessions: int | None = None
    tokens: float = 1.0  # factor on all lengths
    turns: float = 1.0  # on how many a session has
    think: float = 1.0  # on pauses
    within_s: tuple[float, float] | None = None  # only the requests that come from .. until then, before `rate`


def load_workload(
    given: str,
    *,
    seed: int = 1,
    rate: float | None = None,
    requests: int | None = None,
    sessions: int | None = None,
    tokens: float = 1.0,
    turns: float = 1.0,
    think: float = 1.0,
    within_s: tuple[float, float] | None = None,
    told: Callable[[str], None] | None = None,
) -> Workload:
    """A preset's name or a file; the other arguments as in `WorkloadSpec`. `seed` is a preset's; a file has none.

    `told` hears of each unusable line of a file, and the rest is taken; None: ConfigError for a file with any. It is
    raised too for what is unknown, does not apply to this workload, or leaves no request.
    """
    asked = WorkloadSpec(rate, requests, sessions, tokens, turns, think, within_s)
    _demand_sane(asked)
    if given in PRESETS:
        return _windowed(given, _sized(PRESETS[given], asked).workload(seed), asked)
    _demand_default(given, asked, ("sessions", "tokens", "turns", "think"), "a trace")
    trace = read_trace(given)
    if trace.unusable and (told is None or not len(trace.workload.sessions)):
        raise ConfigError(_named(given, trace))
    for one in trace.unusable:
        if told is not None:
            told(f"{given}: {one}")
    return _paced(given, _windowed(given, trace.workload, asked), asked)


def read_trace(given: str) -> traces.Trace:
    """The whole file, with what could not be used of it."""
    path = Path(given)
    if path.is_dir():
        return _decision_log(path)
    if not path.is_file():
        known = describe_unknown("workload", given, PRESETS)
        raise ConfigError(f"{known}; and there is no such file ({', '.join(SUFFIXES)}, or a decision log's folder)")
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{given}: wanted a name that ends in {', '.join(SUFFIXES)}")
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    with _opened(path) as lines:
        if ".csv" in path.suffixes:
            return traces.read_azure(lines, name)
        head = list(islice(lines, 1))
        if head and head[0].startswith(LEDGER_LINES):
            return _decision_log(path)
        return traces.read_mooncake(chain(head, lines), name)


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as failure:
        raise WarmrouteError(f"{path}: cannot be read: {failure}") from failure


def _decision_log(path: Path) -> traces.Trace:
    bad: list[traces.UnusableLines] = []

    def records() -> Iterator[LoggedRecord]:
        for entry in read([path]):
            if isinstance(entry, UnreadableLine):
                bad.append(traces.UnusableLines(f"{entry.path.name}, line {entry.line}", entry.why))
            elif isinstance(entry, LoggedRecord):
                yield entry

    trace = traces.read_decision_log(records(), path.name.partition(".")[0])
    return trace._replace(unusable=(*bad, *trace.unusable))


def _sized(preset: Preset, asked: WorkloadSpec) -> Preset:
    if isinstance(preset, SharedPrefixWorkload):
        _demand_default(preset.name, asked, ("sessions", "turns", "think"), "an open loop")
        sized = preset.scaled(tokens=asked.tokens)
        return replace(sized, requests=asked.requests or preset.requests, per_s=asked.rate or preset.per_s)
    _demand_default(preset.name, asked, ("rate", "requests", "within_s"), "a closed loop")
    return _agents(preset, asked)


def _agents(preset: AgentsWorkload, asked: WorkloadSpec) -> AgentsWorkload:
    sized = preset.scaled(tokens=asked.tokens, turns=asked.turns, think=asked.think)
    return replace(sized, sessions=asked.sessions or preset.sessions)


def _windowed(given: str, workload: Workload, asked: WorkloadSpec) -> Workload:
    if asked.within_s is not None:
        workload = take_window(workload, *asked.within_s)
    if not len(workload.sessions):
        raise ConfigError(f"{given}: there are no requests in it, or none in the time asked for")
    return workload


def _paced(given: str, workload: Workload, asked: WorkloadSpec) -> Workload:
    """The first requests of a trace, sped up or slowed down to come at the rate asked for."""
    if asked.requests is not None:
        workload = take_first(workload, asked.requests)
    if asked.rate is None:
        return workload
    took_s = workload.sessions[-1].start_s - workload.sessions[0].start_s
    if took_s <= 0:
        raise ConfigError(f"{given}: all its requests come at once: there is no rate to change")
    return speed_up(workload, asked.rate * took_s / (len(workload.sessions) - 1))


def _demand_sane(asked: WorkloadSpec) -> None:
    for name, value in asked._asdict().items():
        if name != "within_s" and value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name}: {value}: wanted more than 0")
    if asked.within_s is not None and not 0 <= asked.within_s[0] < asked.within_s[1]:
        raise ConfigError(f"within_s: {asked.within_s}: wanted seconds, from before until")


def _demand_default(given: str, asked: WorkloadSpec, names: Sequence[str], kind: str) -> None:
    for name in names:
        if getattr(asked, name) != WorkloadSpec._field_defaults[name]:
            wanted = {"a closed loop": "sessions, tokens, turns, think", "an open loop": "requests, rate, tokens"}
            raise ConfigError(
                f"{given} is {kind}: {name} does not apply to it; what does: {wanted.get(kind, 'requests, rate')}"
            )


def _named(given: str, trace: traces.Trace) -> str:
    """The first few lines that are no use."""
    lines = [f"{given}: {one}" for one in trace.unusable[:NAMED_LINES]]
    if more := len(trace.unusable) - len(lines):
        lines.append(f"{given}: and {more:,} more like that")
    return "\n".join([*lines, f"{given}: {len(trace.workload.sessions):,} requests could be used"])
