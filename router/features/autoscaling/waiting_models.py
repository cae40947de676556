"""Models for which requests wait now, in any worker of this router or of its replicas.

Every worker reports that again and again while requests wait there (`model_waits.py`). Not everybody who starts
instances is called then: KEDA polls, and what it gets is which models were reported lately.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from router.clock import Clock
from router.features.autoscaling.model_waits import ASK_AGAIN_S

FORGET_S = 3 * ASK_AGAIN_S  # after the last ask


class WaitingModels:
    """`share(model, waiting)` publishes for what requests wait here; `on_begin`: called when requests begin to
    wait for a model.
    """

    def __init__(self, clock: Clock) -> None:
        self.share: Callable[[str, int], None] = lambda model, waiting: None
        self.on_begin: list[Callable[[], None]] = []
        self._clock = clock
        self._requested_s: dict[str, float] = {}  # last ask by model, the oldest first

    def report(self, model: str, waiting: int) -> None:
        """Note that requests wait for a model in this process, and publish it."""
        self.share(model, waiting)
        self.note(model)

    def note(self, model: str) -> None:
        """Note that requests wait for a model, here or at another process."""
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
