"""ZeroMQ's file descriptors are edge-triggered, and asyncio and uvloop watch them differently: both must work."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS if item.path.name == "test_kv_events.py" else {"asyncio": asyncio.new_event_loop}
