"""The list in the main configuration."""

from __future__ import annotations

import pytest

from router.backends.discovery.discovery import StaticDiscovery
from router.config.schema import InstanceConfig
from tests.suites.discovery import DiscoverySuite, Source, instances


class Given:
    changes = False

    def __init__(self) -> None:
        self.discovery = StaticDiscovery([])

    def put(self, instances: list[InstanceConfig]) -> None:
        self.discovery = StaticDiscovery(instances)


class TestStatic(DiscoverySuite):
    @pytest.fixture
    def source(self) -> Source:
        return Given()


async def test_it_ends_because_it_can_never_change() -> None:
    lists = [[found.config for found in listed] async for listed in StaticDiscovery(instances("a")).watch()]
    assert lists == [instances("a")]
