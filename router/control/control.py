"""The operator's line: what may be asked of the router while it runs, by files, admin API, command line and guard.

    read (strictly) -> build -> plan on earlier requests -> swap, one assignment -> audit          (`switching.py`)

What cannot be read or built changes nothing, and is remembered as that source's error until something of it can.

`undo` goes back to what was in force before the last switch, and again to the one before that; there is no way forward
but to switch again. It does not bring back an arm that was rolled back (`rollbacks.py`). Policies that were put here
are in memory only. Files win where they change; a file that is as it was undoes nothing that was done here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from router.clock import Clock
from router.config.lookup import list_shipped_policies
from router.config.reader import dump_yaml, parse_experiment, parse_policies, parse_policy, read_policy_file
from router.config.validation_errors import describe_unknown
from router.control import policy_files, proposals
from router.control.proposals import Proposal
from router.control.summaries import SwitchSummary, describe_experiment, describe_policies
from router.control.switch import ADMIN, FILES, PolicySwitch, SwitchRequest
from router.errors import ConfigError, NotFound, RequestRefused
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
    """Why a source's last word was not taken."""

    at_wall_s: float
    text: str


class Control:
    """Over the regime that the core was built with. `file` is the main configuration file, as it was read for that;
    None: there is none.
    """

    def __init__(
        self, core: Scheduler, ring: RecentRecords, audit: AuditLog, clock: Clock, file: Path | str | None = None
    ) -> None:
        self.audit = audit
        self.failures: Counter[str] = Counter()  # by source: what could not be read or built
        self.errors: dict[str, SourceFailure] = {}  # by source; gone when it reads well again
        self.needs_restart: list[str] = []  # keys of the file that changed and do not take effect live
        self._core = core
        self._clock = clock
        self._registry = load_registry()
        self._switching = PolicySwitch(core, ring, audit, clock)
        self._file = None if file is None else Path(file)
        self._first_read = (
            None if self._file is None else policy_files.read(self._file)
        )  # what needs a restart counts from here
        self._folder = None if self._first_read is None else self._first_read.folder
        # Of the files, not of the regime: that may have been chosen otherwise at the start (`serve --policy`).
        self._said = (
            proposals.extract_settings(core.selector.policy_set) if self._first_read is None else self._first_read.said
        )

    def spreads(self, everywhere: Callable[[], Awaitable[None]]) -> None:
        """Other processes decide by the same regime: a switch is done when `everywhere` returns."""
        self._switching.everywhere = everywhere

    @property
    def regime(self) -> PolicySet:
        return self._switching.regime

    @property
    def switches(self) -> Counter[str]:
        """How many there were, by source."""
        return self._switching.switches

    # what an operator may do: all raise ConfigError, NotFound or Conflict, and have changed nothing then

    async def put_policy(
        self, name: str, text: str, who: str, *, activate: bool = False, dry_run: bool = False
    ) -> SwitchSummary:
        """Adds a policy, or replaces it, in memory; with `activate` it decides at once."""
        asked = SwitchRequest(ADMIN, who, f"put policy {name}" + (" and activate it" if activate else ""), dry_run)
        active = name if activate else None
        with self._remembered(asked):
            spec = await asyncio.to_thread(parse_policy, text, name)
            return await self._switching.switch(
                asked, lambda now: proposals.propose_policies(now, {name: spec}, self._registry, active)
            )

    async def put_policies(self, text: str, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """As `put_policy` for several, by name: all or none."""
        asked = SwitchRequest(ADMIN, who, "put policies", dry_run)
        with self._remembered(asked):
            specs = await asyncio.to_thread(parse_policies, text)
            asked = asked._replace(what=f"put policies {', '.join(specs)}")
            return await self._switching.switch(
                asked, lambda now: proposals.propose_policies(now, specs, self._registry)
            )

    async def activate(self, name: str, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """Let this policy decide, and end a running experiment; a shipped policy need not be loaded before.

        Raises NotFound for an unknown name.
        """
        file = None if name in self.regime.policies else list_shipped_policies().get(name)
        shipped = {} if file is None else {name: await asyncio.to_thread(read_policy_file, file)}

        def make(now: PolicySet) -> Proposal:
            if name in shipped and name not in now.policies:
                return proposals.propose_policies(now, shipped, self._registry, name)
            find_policy(now, name)
            return proposals.propose_activation(now, name)

        return await self._switching.switch(SwitchRequest(ADMIN, who, f"activate {name}", dry_run), make)

    async def start_experiment(self, text: str, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """It begins, in the place of one that runs."""
        asked = SwitchRequest(ADMIN, who, "start experiment", dry_run)
        with self._remembered(asked):
            experiment = await asyncio.to_thread(parse_experiment, text, self.regime.policies)
            asked = asked._replace(what=f"start experiment of {', '.join(experiment.arms)}")
            return await self._switching.switch(asked, lambda now: proposals.propose_experiment(now, experiment))

    async def end_experiment(self, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """The active policy decides for everybody again."""

        def make(now: PolicySet) -> Proposal:
            if now.experiment is None:
                raise ControlConflict("no experiment is running", code="no_experiment")
            return proposals.propose_end(now)

        return await self._switching.switch(SwitchRequest(ADMIN, who, "end experiment", dry_run), make)

    async def undo(self, who: str, *, dry_run: bool = False) -> SwitchSummary:
        """Back to before the last switch."""

        def make(now: PolicySet) -> Proposal:
            if not self._switching.undo:
                raise ControlConflict("there is no switch left to undo", code="nothing_to_undo")
            what, before = self._switching.undo[-1]
            return Proposal(before, (f"undone: {what}",))

        return await self._switching.switch(SwitchRequest(ADMIN, who, "undo", dry_run), make, back=True)

    # the files

    def paths(self) -> list[Path]:
        """What is to be watched."""
        return [path for path in (self._file, self._folder) if path is not None]

    async def reload_files(self) -> SwitchSummary | None:
        """Takes over what changed in the files. None: they cannot be read, and nothing changed."""
        if self._file is None:
            return None
        try:
            found = await asyncio.to_thread(policy_files.read, self._file)
            self._folder = found.folder
            switch = await self._switching.switch(
                SwitchRequest(FILES, FILES, "files changed"),
                lambda now: proposals.merge_file_changes(now, self._said, found.said, self._registry),
            )
        except ConfigError as wrong:
            self._failed(FILES, wrong)
            return None
        if self.errors.pop(FILES, None) is not None:
            log.info("the files read well again")
        self._said = found.said
        if self._first_read is not None:
            self._compare(policy_files.must_restart(self._first_read, found))
        return switch

    def _compare(self, keys: list[str]) -> None:
        if keys and keys != self.needs_restart:
            log.warning("these changes need a restart to take effect: %s", ", ".join(keys))
        self.needs_restart = keys

    # the guard

    def found(self, finding: Finding) -> None:
        """An arm is too bad."""
        self._switching.roll_back(finding)

    # what is the case, as plain JSON types

    def policies(self) -> dict[str, Any]:
        return {
            **describe_policies(self.regime),
            "errors": {source: failure._asdict() for source, failure in self.errors.items()},
            "failures": dict(self.failures),
            "switches": dict(self.switches),
            "needs_restart": self.needs_restart,
            "undo": [step.what for step in reversed(self._switching.undo)],
            "audit": {"waiting": self.audit.pending, "lost": self.audit.lost, "trouble": self.audit.trouble},
        }

    def policy(self, name: str) -> str:
        """One policy as YAML, every default written out. Raises NotFound."""
        spec = find_policy(self.regime, name).spec
        if spec is None:
            raise NotFound(f"policy {name} was built by hand: it has no text", param="name", code="unknown_policy")
        return dump_yaml(spec)

    def experiment(self) -> dict[str, Any]:
        told = describe_experiment(self.regime, self._core.experiment, self._core.selector.shadows)
        return {"running": told is not None, **(told or {}), "last": self._switching.ended}

    def entries(self, limit: int) -> list[dict[str, Any]]:
        """Of the audit log, newest first."""
        return [msgspec.to_builtins(entry) for entry in self.audit.latest(limit)]

    # what went wrong

    @contextmanager
    def _remembered(self, asked: SwitchRequest) -> Iterator[None]:
        """What cannot be built stays known as its source's error, until something can. Of tries nothing is kept."""
        try:
            yield
        except ConfigError as wrong:
            if not asked.dry_run:
                self._failed(asked.source, wrong)
            raise
        if not asked.dry_run:
            self.errors.pop(asked.source, None)

    def _failed(self, source: str, wrong: ConfigError) -> None:
        self.failures[source] += 1
        before = self.errors.get(source)
        if before is None or before.text != str(wrong):
            log.error("nothing was switched, what is in force stays: %s", wrong)
        self.errors[source] = SourceFailure(self._clock.wall(), str(wrong))


def find_policy(regime: PolicySet, name: str) -> Policy:
    """Raises NotFound."""
    if name not in regime.policies:
        raise NotFound(describe_unknown("policy", name, regime.policies), param="policy", code="unknown_policy")
    return regime.policies[name]
