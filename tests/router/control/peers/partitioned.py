"""Processes that count an experiment of policies and splits of models together, and traffic over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from router.clock import ManualClock
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.models import AliasConfig
from router.control.background import check_experiment
from router.control.peers.experiments import SharedExperiments
from router.control.peers.policies import SharedPolicies
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.model_split import ModelSplit
from router.scheduling.experiments.results import ExperimentReport, Finding
from tests.router.control.control_plane import ControlPlane, experiment
from tests.router.control.peers.memory_network import MemoryNetwork
from tests.router.scheduling.experiments.traffic import ATTEMPTS, Event

SPEC = experiment(unit="session", observe_s=20, limits={"error_rate_max": 0.9})
SPLIT = {"near": {"model": "llama", "share": 50}, "far": {"model": "qwen", "share": 50}}
END_S = 2000.0  # after all traffic


def a_split(name: str = "chat", **settings: Any) -> ModelSplit:
    settings = {"observe_s": 20, "limits": {"error_rate_max": 0.9}} | settings
    return ModelSplit(name, AliasConfig.model_validate({"split": SPLIT, "experiment": settings}))


class Process:
    """A process that counts, with the experiment `spec`, if there is one, and the splits that `make` makes."""

    def __init__(
        self,
        run: str,
        network: MemoryNetwork,
        spec: ExperimentConfig | None = SPEC,
        make: Callable[[], Iterable[ModelSplit]] = tuple,
    ) -> None:
        self.run = run
        self.peers = network.join(run)
        self.clock = ManualClock(0.0, wall=5000.0)
        self.plane = ControlPlane(running=spec, clock=self.clock)
        self.splits = [*make()]
        self.plane.control.guard_splits(self.splits)
        self.policies = SharedPolicies(self.plane.control, self.peers)
        self.shared = SharedExperiments(self.peers, self.plane.core, self.policies, self.splits, self.clock)
        self.peers.parts += [self.policies, self.shared]

    @property
    def experiment(self) -> RunningExperiment:
        found = self.plane.core.experiment
        assert found is not None
        return found

    @property
    def split(self) -> ModelSplit:
        return self.splits[0]

    def move_to(self, now_s: float) -> None:
        self.clock.advance(max(0.0, now_s - self.clock.now()))

    def guard(self) -> None:
        """Act on what the guards find."""
        check_experiment(self.plane.control, self.plane.core, self.clock)

    def rollbacks(self) -> list[tuple[str, str | None, str | None]]:
        """What was rolled back, which arm, and where, if not here; oldest first."""
        entries = reversed(self.plane.audit.latest())
        return [(entry.what, entry.arm, entry.replica) for entry in entries if entry.what.startswith("rollback")]


Group = dict[str, Process]


def processes(
    runs: str, spec: ExperimentConfig | None = SPEC, make: Callable[[], Iterable[ModelSplit]] = tuple
) -> tuple[MemoryNetwork, Group]:
    """Processes named by a letter each, which know each other."""
    network = MemoryNetwork()
    group = {run: Process(run, network, spec, make) for run in runs}
    look(group)
    return network, group


def of_policies(process: Process) -> RunningExperiment:
    return process.experiment


def of_split(process: Process) -> RunningExperiment:
    return process.split.experiment


Counted = Callable[[Process], RunningExperiment]


def look(group: Group, counted: Counted | None = None) -> list[Finding]:
    """All processes find out which there are, share their counts, and look for what must be done."""
    for process in group.values():
        process.shared.poll()
    for process in group.values():
        process.shared.share_counts()
    if counted is None:
        return []
    return [finding for process in group.values() for finding in counted(process).poll(process.clock.now())]


def replay(
    group: Group, events: Sequence[Event], dice: Random, counted: Counted = of_policies
) -> list[tuple[float, Finding]]:
    """Each request is answered by any of the processes. Returns what was found, and when."""
    at: dict[int, Process] = {}
    found: list[tuple[float, Finding]] = []
    for n, event in enumerate(events):
        for process in group.values():
            process.move_to(event.at_s)
        if not event.ends:
            at[event.record.number] = dice.choice(list(group.values()))
            counted(at[event.record.number]).begin_request(event.arm, event.unit, event.record)
        else:
            end(counted(at[event.record.number]), event)
        if n % 50 == 0:
            found += [(event.at_s, finding) for finding in look(group, counted)]
    return found


def end(running: RunningExperiment, event: Event) -> None:
    record = event.record
    record.attempts = ATTEMPTS[record.number % 2]
    record.ttft_ms, record.duration_ms, record.status = event.ttft_ms, event.ttft_ms + 500.0, event.status
    record.prompt_tokens, record.cached_tokens = 1000, event.cached
    record.output_tokens = 20 + record.number * 7 % 100
    running.first_byte(record)
    running.end_request(record)


def finish_all(group: Group, counted: Counted = of_policies) -> list[Finding]:
    found: list[Finding] = []
    for after_s in (0.0, 100.0, 200.0):
        for process in group.values():
            process.move_to(END_S + after_s)
        found += look(group, counted)
    look(group)
    return found


def figures(report: ExperimentReport) -> list[tuple[int, int, int, int]]:
    return [(arm.units_open, arm.units_closed, arm.requests, arm.failed) for arm in report.arms]


def estimates(report: ExperimentReport) -> list[float | None]:
    return [each for arm in report.arms for one in arm.standings for each in (one.estimate, one.low, one.high)]
