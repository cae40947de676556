"""The duties that one process of a host has for all of its workers.

    configuration files and sources of instances are watched
    the admin listener, that of metrics.port and that of KEDA accept connections
    the index snapshot, the audit log and the usage of tenants are written
    prefixes are loaded ahead, instances are started, admission is decided
    what other hosts send is received

One process alone has them. Among workers the first has them until it ends, then the lowest number that lives. They
are taken and never given back, so nothing is handed over between two processes that live.
"""

from __future__ import annotations

from collections.abc import Callable


class Duty:
    """The duties of a host: held by this process or not, and the run id of the worker that has them; None: it has
    just ended.
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
        """The worker with this run has the duties from now on."""
        self.holder = holder
        if self.held:
            starts, self._starts = self._starts, []
            for start in starts:
                start()
