"""The last target of each session, per part of a request.

The selector has one memory, fed by the actual choices. Every shadow and every replayed policy has a memory of its
own, fed by its own choices; otherwise it would be judged by another policy's history.
"""

from __future__ import annotations

from collections import OrderedDict

from router.scheduling.policy.decision import Part
from scorers.contract import View

Key = tuple[bool, str, str]  # (is a prefill half, model, session): prefill halves go to other targets


class SessionMemory:
    """Last targets of up to `size` sessions; the least recently seen session is forgotten first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._targets: OrderedDict[Key, str] = OrderedDict()  # a dict finds its first key slowly after many deletions

    def __len__(self) -> int:
        return len(self._targets)

    def items(self) -> list[tuple[Key, str]]:
        """Return all entries, the least recently seen session first."""
        return list(self._targets.items())

    def get(self, key: Key) -> str | None:
        """Return the target of a key; None if the key is unknown."""
        return self._targets.get(key)

    def last_target(self, view: View, part: Part) -> str | None:
        """Return the last target of the view's session; None if there is no session or its target is unknown."""
        return self.last_target_of(view.model, view.session, part)

    def last_target_of(self, model: str, session: str | None, part: Part) -> str | None:
        """Return the last target of a session; None if `session` is None or its target is unknown."""
        return None if session is None else self._targets.get((part == "prefill", model, session))

    def forget(self, view: View, part: Part) -> None:
        """Forget the view's session."""
        if view.session is not None and self._targets:
            self._targets.pop((part == "prefill", view.model, view.session), None)

    def record(self, view: View, part: Part, target: str) -> None:
        """Record the target of the view's session."""
        if view.session is not None:
            self.put((part == "prefill", view.model, view.session), target)

    def put(self, key: Key, target: str) -> None:
        """Set the target of a key."""
        self._targets[key] = target
        self._targets.move_to_end(key)
        if len(self._targets) > self.size:
            self._targets.popitem(last=False)
