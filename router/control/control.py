"""The control plane: what can be changed while the router runs, by files, admin API, command line and guard.

    read (strictly) -> build -> dry run on earlier requests -> swap, one assignment -> audit log       (`switch.py`)

A change that cannot be read or built has no effect. Its error is kept for its source until a change from that
source succeeds.

`undo` returns to the policies in force before the last switch; when repeated, it goes back one more switch each
time. There is no redo. An undo does not bring back an arm that was rolled back (`switch.py`). Policies added
through the API are in memory only. A file takes precedence when it changes; an unchanged file does not undo what
the API did.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from router.clock import Clock
from router.config.lookup import list_shipped_policies
from router.config.reader import (
    dump_yaml,
    parse_admission,
    parse_experiment,
    parse_policies,
    parse_policy,
    read_policy_file,
)
from router.config.validation_errors import describe_unknown
from router.control import proposals
from router.control.duty import Duty
from router.control.operator_state import KeptPolicies, OperatorState
from router.control.policy_rule import build_from_rule, make_rule, read_rule, rule_of
from router.control.proposals import PolicyFiles, Proposal
from router.control.splits import SplitGuard
from router.control.summaries import SwitchSummary, describe_experiment, describe_policies
from router.control.switch import (
    ADMIN,
    FILES,
    REPLICAS,
    DecisionVersion,
    PolicySwitch,
    SwitchListener,
    SwitchRequest,
)
from router.errors import ConfigError, NotFound, RequestRefused
from router.scheduling.experiments.model_split import ModelSplit
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.results import Finding
from router.scheduling.policy.policy import Policy
from router.scheduling.scheduler import Scheduler
from router.telemetry.audit_log import AuditLog
from router.telemetry.recent_records import RecentRecords
from scorers.registry import load_registry

log = logging.getLogger("warmroute.control")


class ControlConflict(RequestRefused):
    status, kind = 409, "conflict_error"


class SourceFailure(NamedTuple):
    """The reason why the last change from a source was not applied."""

    at_wall_s: float
    text: str


class Control:
    """Changes the policies of `scheduler`. `duty` is None if this is the only process.

    An operator's operation that raises `ConfigError`, `NotFound` or `ControlConflict` has changed nothing.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        recent_records: RecentRecords,
        audit: AuditLog,
        clock: Clock,
        duty: Duty | None = None,
    ) -> None:
        self.audit = audit
        self.failures: Counter[str] = Counter()  # by source: changes that could not be read or built
        self.errors: dict[str, SourceFailure] = {}  # by source; removed when a change from it succeeds
        self.splits: SplitGuard | None = None  # of models; set where there are any
        self.needs_restart: list[str] = []  # changed keys of the file that take effect only after a restart
        self._scheduler = scheduler
        self._clock = clock
        self._registry = load_registry()
        self._switch = PolicySwitch(scheduler, recent_records, audit, clock, duty)
        self._file: Path | None = None  # the main configuration file; None: changes of files are not applied here
        self._folder: Path | None = None  # of policies
        self._first_read: PolicyFiles | None = None  # the baseline for changes that need a restart
        self._file_settings = proposals.extract_settings(self.policy_set)
        self._configured = self._file_settings  # what this process would start with now
        self.kept: KeptPolicies | None = None  # what was restored at the start and is in force as it was

    def log_start(self) -> None:
        """Log the policies that this router starts with. Called by the process on duty if no other process of its
        host runs.
        """
        self._switch.log_start()

    def wait_for_workers_with(self, wait_until_applied: Callable[[], Awaitable[None]]) -> None:
        """Make every switch wait for `wait_until_applied`: until other workers have applied the switch too."""
        self._switch.wait_until_applied = wait_until_applied

    def guard_splits(self, splits: Sequence[ModelSplit]) -> None:
        """Guard these splits of models."""
        if splits:
            self.splits = SplitGuard(splits, self.audit, self._clock, lambda: self.policy_set)
            self.splits.listener = self._switch.listener
            for split, arm in self._switch.rollbacks:  # those of splits were restored with the rest
                self.splits.follow_rollback(split, arm)

    def report_to(self, listener: SwitchListener) -> None:
        """Notify `listener` of the decisions of this process from now on."""
        self._switch.listener = listener
        if self.splits is not None:
            self.splits.listener = listener

    @property
    def policy_set(self) -> PolicySet:
        """The policies in force."""
        return self._switch.policy_set

    @property
    def switches(self) -> Counter[str]:
        """Number of switches by source."""
        return self._switch.switches

    @property
    def rollbacks(self) -> list[tuple[str, str]]:
        """The fingerprints of experiments and splits, each with an arm that was rolled back."""
        return sorted({*self._switch.rollbacks, *(() if self.splits is None else self.splits.rollbacks)})

    # from one process to the next

    def collect_state(self) -> OperatorState:
        """Return the state that operators have set, for the process that comes next."""
        last = self._switch.last
        policies = None if last is None else self._keep_policies(last)
        return OperatorState(list(self._scheduler.drains), policies, self.rollbacks)

    def _keep_policies(self, last: SwitchRequest) -> KeptPolicies | None:
        """Return the policies that `last` put in force; None if they are those of the configuration."""
        in_force, configured = rule_of(self.policy_set), make_rule(self._configured)
        if in_force == configured:
            return None
        listener = self._switch.listener
        version = DecisionVersion() if listener is None else listener.version
        return KeptPolicies(last.who, last.what, in_force, configured, *version)

    def restore(self, state: OperatorState) -> None:
        """Put in force what operators had set before this process started. Settings of the configuration that have
        changed since take precedence. Call it before peers and splits are connected.
        """
        for decision in state.drains:
            self._scheduler.drains.accept(decision)
        kept, policy_set, request = state.policies, self.policy_set, None
        if kept is not None:
            request = SwitchRequest(ADMIN, kept.who, kept.what)
            try:
                policy_set = self._build_kept(kept)
            except ConfigError as error:
                log.warning("%s by %s is not in force any more: %s", kept.what, kept.who, error)
        if self._switch.restore(request, policy_set, state.rolled_back) and kept is not None:
            self.kept = kept if rule_of(self.policy_set) == kept.in_force else None

    def _build_kept(self, kept: KeptPolicies) -> PolicySet:
        """Return the policies that were in force, with what has changed in the configuration. Raises ConfigError."""
        before = build_from_rule(kept.in_force, self.policy_set, self._registry)
        seen = read_rule(kept.configured)
        return proposals.merge_file_changes(before, seen, self._configured, self._registry).policy_set

    # operations

    async def put_policy(
        self, name: str, text: str, who: str, *, activate: bool = False, dry_run: bool = False
    ) -> SwitchSummary:
        """Add or replace a policy, in memory; with `activate` it also decides from now on. Raises ConfigError."""
        request = SwitchRequest(ADMIN, who, f"put policy {name}" + (" and activate it" if activate else ""), dry_run)
        active = name if activate else None
        with self._recording_failure(request):
            spec = await asyncio.to_thread(parse_policy, text, name)
            return await self._switch.switch(
                request, lambda now: proposals.propose_policies(now, {name: spec}, self._registry, active)
            )

    async def put_policies(self, text: str, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """Add or replace several policies by name: all or none. Raises ConfigError."""
        request = SwitchRequest(ADMIN, who, "put policies", dry_run)
        with self._recording_failure(request):
            specs = await asyncio.to_thread(parse_policies, text)
            request = request._replace(what=f"put policies {', '.join(specs)}")
            return await self._switch.switch(
                request, lambda now: proposals.propose_policies(now, specs, self._registry)
            )

    async def activate(self, name: str, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """Make a policy, loaded or shipped, decide for all requests; a running experiment ends. Raises NotFound."""
        files = list_shipped_policies()
        file = None if name in self.policy_set.policies else files.get(name)
        shipped = {} if file is None else {name: await asyncio.to_thread(read_policy_file, file)}

        def propose(now: PolicySet) -> Proposal:
            if name in shipped and name not in now.policies:
                return proposals.propose_policies(now, shipped, self._registry, name)
            find_policy(now, name, files)
            return proposals.propose_activation(now, name)

        return await self._switch.switch(SwitchRequest(ADMIN, who, f"activate {name}", dry_run), propose)

    async def start_experiment(self, text: str, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """Start an experiment, replacing a running one; shipped policies need not be loaded. Raises ConfigError."""
        request = SwitchRequest(ADMIN, who, "start experiment", dry_run)
        files = list_shipped_policies()
        with self._recording_failure(request):
            known = self.policy_set.policies.keys()
            active = self.policy_set.active
            experiment = await asyncio.to_thread(parse_experiment, text, known | files.keys(), active)
            missing = {*experiment.policies.values(), *experiment.shadows} - known
            shipped = {name: await asyncio.to_thread(read_policy_file, files[name]) for name in sorted(missing)}
            request = request._replace(what=f"start experiment of {', '.join(experiment.arms)}")
            return await self._switch.switch(
                request, lambda now: proposals.propose_experiment(now, experiment, shipped, self._registry)
            )

    async def put_admission(self, text: str, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """Let an admission rule decide which requests may begin. Raises ConfigError."""
        request = SwitchRequest(ADMIN, who, "put admission", dry_run)
        with self._recording_failure(request):
            admission = await asyncio.to_thread(parse_admission, text)
            what = f"admit by {admission.rule.name}" if admission.enabled else "turn admission control off"
            return await self._switch.switch(
                request._replace(what=what), lambda now: proposals.propose_admission(now, admission, self._registry)
            )

    async def end_experiment(self, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """End the experiment: the active policy decides for all requests. Raises ControlConflict when none runs."""

        def propose(now: PolicySet) -> Proposal:
            if now.experiment is None:
                raise ControlConflict("no experiment is running", code="no_experiment")
            return proposals.propose_end(now)

        return await self._switch.switch(SwitchRequest(ADMIN, who, "end experiment", dry_run), propose)

    async def undo(self, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """Restore the policies in force before the last switch. Raises ControlConflict when there is no switch
        left.
        """

        def propose(now: PolicySet) -> Proposal:
            if not self._switch.undo:
                raise ControlConflict("there is no switch left to undo", code="nothing_to_undo")
            what, before = self._switch.undo[-1]
            return Proposal(before, (f"undone: {what}",))

        return await self._switch.switch(SwitchRequest(ADMIN, who, "undo", dry_run), propose, back=True)

    # files

    async def follow_file(self, file: Path) -> None:
        """Apply later changes of the main configuration file `file` and its folder of policies. The policies in force
        stay, also where they differ from the files: `serve --policy` chose another one, or an operator did while
        another process of the host had the duties.
        """
        self._file = file
        try:
            self._first_read = found = await asyncio.to_thread(proposals.read_files, file)
        except ConfigError as error:
            self._record_failure(FILES, error)
        else:
            self._folder, self._file_settings = found.folder, found.settings

    def watched_paths(self) -> list[Path]:
        """Return the paths whose changes `reload_files` would apply."""
        return [path for path in (self._file, self._folder) if path is not None]

    async def reload_files(self) -> SwitchSummary | None:
        """Apply the changes of the files. Return None, with nothing changed, if they cannot be read or built, or if
        there is no file.
        """
        if self._file is None:
            return None
        try:
            found = await asyncio.to_thread(proposals.read_files, self._file)
            self._folder = found.folder
            summary = await self._switch.switch(
                SwitchRequest(FILES, FILES, "files changed"),
                lambda now: proposals.merge_file_changes(now, self._file_settings, found.settings, self._registry),
            )
        except ConfigError as error:
            self._record_failure(FILES, error)
            return None
        if self.errors.pop(FILES, None) is not None:
            log.info("configuration files: the error is fixed, changes take effect again")
        self._configured = proposals.merge_settings(self._configured, self._file_settings, found.settings)
        self._file_settings = found.settings
        if self._first_read is not None:
            keys = proposals.find_restart_keys(self._first_read, found)
            if keys and keys != self.needs_restart:
                log.warning("configuration files: changes of these keys need a restart: %s", ", ".join(keys))
            self.needs_restart = keys
        return summary

    # the guard

    def handle_finding(self, finding: Finding) -> None:
        """Roll back an arm that the guard or a limit found too bad. Each process judges the units that it
        counts.
        """
        self._switch.roll_back(finding)

    # other processes

    async def follow_replica(
        self,
        what: str,
        build: Callable[[PolicySet], PolicySet],
        confirm: Callable[[], bool],
        *,
        back: bool,
        near: bool = False,
    ) -> None:
        """Put in force policies that were decided at another process; see `PolicySwitch.follow`. If they cannot be
        built, the error is recorded for the source `replicas`.
        """
        try:
            await self._switch.follow(what, build, confirm, back=back, near=near)
        except ConfigError as error:
            self._record_failure(REPLICAS, error)
        else:
            self.errors.pop(REPLICAS, None)

    def follow_rollback(self, experiment: str, arm: str, *, near: bool = False) -> None:
        """Remove an arm of an experiment or a split that was rolled back at another process. `near` is true if that
        is a worker of this host.
        """
        self._switch.follow_rollback(experiment, arm, near=near)
        if self.splits is not None:
            self.splits.follow_rollback(experiment, arm)

    def trouble(self, source: str) -> str | None:
        """Return why the last change from a source was not applied; None if it was applied."""
        failure = self.errors.get(source)
        return None if failure is None else failure.text

    # status, as plain JSON types

    def describe_policies(self) -> dict[str, Any]:
        """Describe the policies in force, and recent errors."""
        return {
            **describe_policies(self.policy_set),
            "errors": {source: failure._asdict() for source, failure in self.errors.items()},
            "failures": dict(self.failures),
            "switches": dict(self.switches),
            "needs_restart": self.needs_restart,
            "undo": [step.what for step in reversed(self._switch.undo)],
            "audit": {"waiting": self.audit.pending, "lost": self.audit.lost, "trouble": self.audit.trouble},
        }

    def dump_policy(self, name: str) -> str:
        """Return a policy as YAML with every default written out. Raises NotFound."""
        spec = find_policy(self.policy_set, name).spec
        if spec is None:
            raise NotFound(f"policy {name} was built by hand: it has no text", param="name", code="unknown_policy")
        return dump_yaml(spec)

    def describe_experiment(self) -> dict[str, Any]:
        """Describe the running experiment, if any, the last one that ended, and the splits of models by alias."""
        running = describe_experiment(self.policy_set, self._scheduler.experiment, self._scheduler.selector.shadows)
        described = {"running": running is not None, **(running or {}), "last": self._switch.ended}
        return described if self.splits is None else {**described, "models": self.splits.describe()}

    def list_audit_entries(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest entries of the audit log, newest first."""
        return [msgspec.to_builtins(entry) for entry in self.audit.latest(limit)]

    # failures

    @contextmanager
    def _recording_failure(self, request: SwitchRequest) -> Iterator[None]:
        """Keep a `ConfigError` as its source's error, until a change from that source succeeds. Dry runs are not
        recorded.
        """
        try:
            yield
        except ConfigError as error:
            if not request.dry_run:
                self._record_failure(request.source, error)
            raise
        if not request.dry_run:
            self.errors.pop(request.source, None)

    def _record_failure(self, source: str, error: ConfigError) -> None:
        self.failures[source] += 1
        before = self.errors.get(source)
        if before is None or before.text != str(error):
            log.error("policy change from %s refused, the policies in force stay: %s", source, error)
        self.errors[source] = SourceFailure(self._clock.wall(), str(error))


def find_policy(policy_set: PolicySet, name: str, others: Iterable[str] = ()) -> Policy:
    """Return a policy by name. Raises NotFound, which suggests one of the known names and `others`."""
    if name not in policy_set.policies:
        text = describe_unknown("policy", name, {*policy_set.policies, *others})
        raise NotFound(text, param="policy", code="unknown_policy")
    return policy_set.policies[name]
