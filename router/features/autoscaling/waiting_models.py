"""Models for which requests wait now, in any worker of this router or of its replicas.

Every worker reports such a model repeatedly while requests wait for it (`model_waits.py`). A starter of instances
is called then, but KEDA polls instead, and gets the models that were reported recently.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from router.clock import Clock
from router.features.autoscaling.model_waits import ASK_AGAIN_S

FORGET_S = 3 * ASK_AGAIN_S  # after the last report


class WaitingModels:
    """The models reported recently. `share(model, waiting)` publishes that requests wait at this process;
    `on_begin` is called when requests begin to wait for a model.
    """

    def __init__(self, clock: Clock) -> None:
        self.share: Callable[[str, int], None] = lambda model, waiting: None
        self.on_begin: list[Callable[[], None]] = []
        self._clock = clock
        self._requested_s: dict[str, float] = {}  # last report by model, the oldest first

    def report(self, model: str, waiting: int) -> None:
        """Record and publish that requests wait for a model in this process."""
        self.share(model, waiting)
        self.note(model)

    def note(self, model: str) -> None:
        """Record that requests wait for a model, in this process or another one."""
        now, begins = self._clock.now(), not self.waits(model)
        self._requested_s.pop(model, None)
        self._requested_s[model] = now
        for late in list(takewhile(lambda name: now - self._requested_s[name] >= FORGET_S, self._requested_s)):
            del self._requested_s[late]
        for call in self.on_begin if begins else ():
            call()

    def waits(self, model: str) -> bool:
        """Return whether requests wait for the model."""
        requested_s = self._requested_s.get(model)
        return requested_s is not None and self._clock.now() - requested_s < FORGET_S
