"""The lab's commands run on asyncio's own event loop, and so do their tests."""

from __future__ import annotations

import asyncio
from typing import Any


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"asyncio": asyncio.new_event_loop}
