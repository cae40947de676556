"""The duties that one process of a host has for all of its workers.

    configuration files and sources of instances are watched
    the admin listener and the listeners of metrics.port and of KEDA accept connections
    the index snapshot, the audit log and the usage of tenants are written
    prefixes are preloaded, instances are started, admission is decided
    messages from other hosts are received

Exactly one process has the duties. Among workers the first one has them until it ends or begins to stop, then the
living worker with the lowest number. Duties never return to a process that had them, so nothing is handed over
between two processes that go on living.
"""

from __future__ import annotations

from collections.abc import Callable


class Duty:
    """The duties of a host, as one process sees them. `holder` is the run id of the worker that has the duties;
    None if that worker has just ended.
    """

    def __init__(self, run: str, *, held: bool) -> None:
        self._run = run
        self.holder: str | None = run if held else None
        self._starts: list[Callable[[], object]] = []

    @property
    def held(self) -> bool:
        return self.holder == self._run

    def when_taken(self, start: Callable[[], object]) -> None:
        """Call `start` when this process takes the duties, at once if it has them."""
        if self.held:
            start()
        else:
            self._starts.append(start)

    def follow(self, holder: str | None) -> None:
        """Note that the worker with the run id `holder` has the duties from now on. If it is this process, call
        what was passed to `when_taken`.
        """
        self.holder = holder
        if self.held:
            starts, self._starts = self._starts, []
            for start in starts:
                start()
