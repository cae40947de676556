"""What starts instances: an interface with one method, implemented by `webhook.py` and `deployment.py`."""

from __future__ import annotations

from typing import Protocol


class InstanceStarter(Protocol):
    async def start(self, model: str, waiting: int) -> str | None:
        """Ask for an instance with `model`, for which `waiting` requests wait. Return what went wrong; None when the
        answer was that it will come, or is there.
        """
