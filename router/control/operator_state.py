"""The state that operators have set in a running router, for the process that comes next: drains, policies,
rolled-back arms.

    take-over    the process that leaves hands it over with its sockets (`handover.py`)
    restart      it is in a file beside the audit log, replaced whole within milliseconds of each change
    replicas     peers publish the same decisions with the same versions (`control/peers`), and the latest counts

Settings of the configuration files that changed in between take precedence over what was set before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from router.config.private_files import replace_private
from router.control.policy_rule import PolicyRule
from router.errors import ConfigError
from router.fleet.drains import DrainDecision

log = logging.getLogger("warmroute.control")

RETRY_S = 5.0


class KeptPolicies(msgspec.Struct, frozen=True):
    """Policies that an operator put in force: the settings in force, and those of the configuration meanwhile."""

    who: str
    what: str  # the last switch, as in the audit log
    in_force: PolicyRule
    configured: PolicyRule
    version: int = 0  # this and the rest: `DecisionVersion`
    by: str = ""
    started: int = 0
    started_by: str = ""


class OperatorState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`policies` is None if those of the configuration are in force."""

    drains: list[DrainDecision] = []
    policies: KeptPolicies | None = None
    rolled_back: list[tuple[str, str]] = []  # fingerprints of experiments and splits, each with an arm

    @property
    def in_words(self) -> list[str]:
        """The differences from the configuration in words, such as `engine-2 drained`."""
        drained = [f"{one.instance} drained" for one in self.drains if one.on]
        return drained if self.policies is None else [*drained, f"{self.policies.what} by {self.policies.who}"]


NOTHING = OperatorState()


def encode_state(state: OperatorState) -> bytes:
    return msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n"


def decode_state(data: bytes, source: str) -> OperatorState:
    """Return the state in `data`; nothing, with a warning that names `source`, if it cannot be read."""
    try:
        return msgspec.json.decode(data, type=OperatorState) if data else NOTHING
    except msgspec.DecodeError as error:
        log.warning("%s cannot be read, drains and policies start as configured: %s", source, error)
        return NOTHING


def find_state_file(audit_file: str | Path | None) -> Path | None:
    """Return the path of the file beside the audit log; None if there is no audit log."""
    return None if audit_file is None else Path(f"{audit_file}.state")


def read_state(file: Path) -> bytes:
    """Return the bytes of the file; none, with a warning unless there is no file, if it cannot be read."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        log.warning("%s: %s: drains and policies start as configured", file, (error.strerror or str(error)).lower())
        return b""


def forget_state(audit_file: str | Path | None) -> None:
    """Remove the file beside the audit log, if there is one. Raises ConfigError if that is not possible."""
    file = find_state_file(audit_file)
    try:
        if file is not None:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{file}: it cannot be removed: {error.strerror or error}") from error


class OperatorStateFile:
    """Writes what `collect` returns to `file` when it has changed."""

    def __init__(self, file: Path, collect: Callable[[], OperatorState]) -> None:
        self._file = file
        self._collect = collect
        self._written: OperatorState | None = None  # None: nothing yet
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()

    def wake(self) -> None:
        """Write soon."""
        self._changed.set()

    async def run(self) -> None:
        """Write after each change, forever; a failure is logged and tried again: run this supervised."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self.flush():
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def flush(self) -> bool:
        """Write the present state unless the file has it; return whether that succeeded."""
        async with self._writing:
            state = self._collect()
            if state == self._written:
                return True
            try:
                await asyncio.to_thread(replace_private, self._file, [encode_state(state)], durable=True)
            except OSError as error:
                log.error("%s: a restart will not know what operators set: %s", self._file, error.strerror or error)
                return False
            self._written = state
            return True
