"""Loader of `--workload X`: a preset by name, or a trace file, scaled to a size and a rate.

    codex | claude | scaling | groups | tools   presets (`presets.py`)
    *.jsonl, *.jsonl.gz                         a Mooncake trace, or a file of Warmroute's decision log
    a folder                                    a complete decision log
    *.csv, *.csv.gz                             a trace of Azure

Closed loops (`Workload.is_closed`) have sessions, turns and pauses; open ones have requests and a rate. A size that
does not apply is rejected, and each unusable line is reported: nothing is lost silently.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from router.config.validation_errors import describe_unknown
from router.errors import ConfigError, WarmrouteError
from router.features.decision_log.format import LoggedRecord
from router.features.decision_log.reader import UnreadableLine, read
from router.lab.workloads import traces
from router.lab.workloads.arrivals import speed_up, take_first, take_window
from router.lab.workloads.model import Workload
from router.lab.workloads.presets import PRESETS, Preset, SharedPrefixWorkload

NAMED_LINES = 5
SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz")
DECISION_LOG_LINES = (b'{"file":', b'{"policy":', b'{"record":')


class WorkloadSpec(NamedTuple):
    """Requested size of a workload. None or 1.0 changes nothing."""

    rate: float | None = None  # mean requests per second
    requests: int | None = None
    sessions: int | None = None
    tokens: float = 1.0  # factor on all lengths
    turns: float = 1.0  # factor on the turns of a session
    think: float = 1.0  # factor on pauses
    within_s: tuple[float, float] | None = None  # only requests in [from, until), before `rate` applies


def load_workload(
    name: str, *, seed: int = 1, on_unusable: Callable[[str], None] | None = None, **sizes: Any
) -> Workload:
    """Return the workload of preset or file `name`; `sizes` as in `WorkloadSpec`. `seed` applies to presets only.

    `on_unusable` is called with each unusable line of a file, and the rest is used; None rejects a file with any.
    Raises ConfigError for such a file, for an unknown name, for sizes that do not apply, and when no request is
    left; WarmrouteError for a file that cannot be read.
    """
    spec = WorkloadSpec(**sizes)
    _check_sizes(spec)
    if name in PRESETS:
        return _select_window(name, _resize(PRESETS[name], spec).workload(seed), spec)
    _check_default(name, spec, ("sessions", "tokens", "turns", "think"), "a trace")
    trace = read_trace(name)
    if trace.unusable and (on_unusable is None or not len(trace.workload.sessions)):
        raise ConfigError(_describe_unusable(name, trace))
    for one in trace.unusable:
        if on_unusable is not None:
            on_unusable(f"{name}: {one}")
    return _set_pace(name, _select_window(name, trace.workload, spec), spec)


def read_trace(file: str) -> traces.Trace:
    """Read a trace file or a decision log's folder. Raises ConfigError for an unsuitable name, WarmrouteError for
    an unreadable file.
    """
    path = Path(file)
    if path.is_dir():
        return _decision_log(path)
    if not path.is_file():
        if path.name.endswith(SUFFIXES):
            raise ConfigError(f"{file}: no such file; correct the path")
        files = f"a file ({', '.join(SUFFIXES)}) or a decision log's folder"
        raise ConfigError(f"{describe_unknown('workload', file, PRESETS)}; or give {files}")
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{file}: the name must end in {', '.join(SUFFIXES)}")
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    with _open(path) as lines:
        if ".csv" in path.suffixes:
            return traces.read_azure(lines, name)
        head = list(islice(lines, 1))
        if head and head[0].startswith(DECISION_LOG_LINES):
            return _decision_log(path)
        return traces.read_mooncake(chain(head, lines), name)


@contextmanager
def _open(path: Path) -> Iterator[Iterator[bytes]]:
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


def _resize(preset: Preset, spec: WorkloadSpec) -> Preset:
    if isinstance(preset, SharedPrefixWorkload):
        _check_default(preset.name, spec, ("sessions", "turns", "think"), "an open loop")
        sized = preset.scale(tokens=spec.tokens)
        return replace(sized, requests=spec.requests or preset.requests, per_s=spec.rate or preset.per_s)
    _check_default(preset.name, spec, ("rate", "requests", "within_s"), "a closed loop")
    agents = preset.scale(tokens=spec.tokens, turns=spec.turns, think=spec.think)
    return replace(agents, sessions=spec.sessions or preset.sessions)


def _select_window(name: str, workload: Workload, spec: WorkloadSpec) -> Workload:
    if spec.within_s is not None:
        workload = take_window(workload, *spec.within_s)
    if not len(workload.sessions):
        raise ConfigError(f"{name}: there are no requests in it, or none within the requested time")
    return workload


def _set_pace(name: str, workload: Workload, spec: WorkloadSpec) -> Workload:
    """Return the first requests of a trace, sped up or slowed down to the requested rate."""
    if spec.requests is not None:
        workload = take_first(workload, spec.requests)
    if spec.rate is None:
        return workload
    took_s = workload.sessions[-1].start_s - workload.sessions[0].start_s
    if took_s <= 0:
        raise ConfigError(f"{name}: all its requests come at once: there is no rate to change")
    return speed_up(workload, spec.rate * took_s / (len(workload.sessions) - 1))


def _check_sizes(spec: WorkloadSpec) -> None:
    for name, value in spec._asdict().items():
        if name != "within_s" and value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name}: {value}: must be above 0")
    if spec.within_s is not None and not 0 <= spec.within_s[0] < spec.within_s[1]:
        raise ConfigError(f"within_s: {spec.within_s}: must be two times in seconds, the first before the second")


def _check_default(name: str, spec: WorkloadSpec, sizes: Sequence[str], kind: str) -> None:
    for size in sizes:
        if getattr(spec, size) != WorkloadSpec._field_defaults[size]:
            others = {"a closed loop": "sessions, tokens, turns, think", "an open loop": "requests, rate, tokens"}
            raise ConfigError(
                f"{name} is {kind}: {size} does not apply to it; what does: {others.get(kind, 'requests, rate')}"
            )


def _describe_unusable(name: str, trace: traces.Trace) -> str:
    """Return the first few unusable lines, and how many more there are."""
    lines = [f"{name}: {one}" for one in trace.unusable[:NAMED_LINES]]
    if more := len(trace.unusable) - len(lines):
        lines.append(f"{name}: and {more:,} more unusable lines")
    return "\n".join([*lines, f"{name}: {len(trace.workload.sessions):,} requests could be used"])
