"""Where each session went last, per part of a request: what a policy may know of a conversation's history.

The desk has one memory, fed by what was really chosen; every shadow and every replayed policy has its own, fed by its
own choices, or they would be judged by somebody else's history.
"""

from __future__ import annotations

from collections import OrderedDict

from router.scheduling.policy.decision import Part
from scorers.contract import View

Key = tuple[bool, str, str]  # prefill halves have a history of their own: they go to other targets


class SessionMemory:
    """Bounded: the session that was longest away is forgotten first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._targets: OrderedDict[Key, str] = OrderedDict()  # a dict finds its first key slowly after many deletions

    def __len__(self) -> int:
        return len(self._targets)

    def items(self) -> list[tuple[Key, str]]:
        """Everything remembered, the session that was longest away first."""
        return list(self._targets.items())

    def get(self, key: Key) -> str | None:
        return self._targets.get(key)

    def last_target(self, view: View, part: Part) -> str | None:
        return self.last_target_of(view.model, view.session, part)

    def last_target_of(self, model: str, session: str | None, part: Part) -> str | None:
        return None if session is None else self._targets.get((part == "prefill", model, session))

    def forget(self, view: View, part: Part) -> None:
        if view.session is not None and self._targets:
            self._targets.pop((part == "prefill", view.model, view.session), None)

    def record(self, view: View, part: Part, target: str) -> None:
        if view.session is not None:
            self.put((part == "prefill", view.model, view.session), target)

    def put(self, key: Key, target: str) -> None:
        self._targets[key] = target
        self._targets.move_to_end(key)
        if len(self._targets) > self.size:
            self._targets.popitem(last=False)
