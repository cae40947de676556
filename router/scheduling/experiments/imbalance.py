"""How evenly requests were spread over targets, among all that could have been chosen: a policy that sends everything
to one of eight is eight times as uneven as can be, though no other target appears in its choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import KeysView


class Imbalance:
    """Requests by target."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()

    def add(self, target: str) -> None:
        self._requests[target] += 1

    @property
    def targets(self) -> KeysView[str]:
        """That were chosen."""
        return self._requests.keys()

    def ratio(self, offered: int) -> float | None:
        """The busiest target's requests over the mean of all `offered` ones, chosen or not: 1 is even. None: no request
        yet.
        """
        total = self._requests.total()
        return max(self._requests.values()) * offered / total if total else None
