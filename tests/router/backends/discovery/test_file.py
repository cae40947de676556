"""A file with a list of instances that changes while it is watched."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
import yaml

from router.backends.discovery.file import FileDiscovery
from router.clock import ManualClock, SystemClock
from router.config.schema import InstanceConfig
from router.picker.credentials import make_self_signed
from tests.suites.discovery import DiscoverySuite, Source, instances, next_of, watching


def text(found: list[InstanceConfig]) -> str:
    return yaml.safe_dump([instance.model_dump(exclude_defaults=True) for instance in found])


class InFile:
    changes = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.discovery = FileDiscovery(path, 0.005, SystemClock())

    def put(self, instances: list[InstanceConfig]) -> None:
        """As a careful deployer does it: written beside, then renamed over."""
        beside = self.path.with_suffix(".new")
        beside.write_text(text(instances))
        beside.replace(self.path)


class TestFile(DiscoverySuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return InFile(tmp_path / "fleet.yaml")


class Looking:
    """A file with two instances, and a discovery that has looked at it once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        path.write_text(text(instances("a", "b")))
        self.discovery = FileDiscovery(path, 1.0, self.clock)
        assert self.look() == instances("a", "b")

    def look(self) -> list[InstanceConfig] | None:
        self.discovery.poll()
        return self.discovery.instances


@pytest.fixture
def file(tmp_path: Path) -> Looking:
    return Looking(tmp_path / "fleet.yaml")


def test_an_unchanged_file_is_not_even_parsed(file: Looking) -> None:
    before = file.look()
    assert file.look() is before


def test_a_rewrite_of_the_same_size_in_the_same_instant_is_seen(file: Looking) -> None:
    file.path.write_text(text(instances("a", "c")))
    assert file.look() == instances("a", "c")


BROKEN = [
    pytest.param("", "empty", id="empty"),
    pytest.param("- url: http://a:1\n  - ", "not YAML", id="not yaml"),
    pytest.param("instances: []\n", "", id="not a list"),
    pytest.param("- url: http://a:1\n  nmae: a\n", "name", id="misspelt"),
    pytest.param("- url: ftp://a:1\n", "url", id="bad url"),
    pytest.param("- url: http://a:1\n- url: http://a:1\n", "a:1", id="twice"),
    pytest.param("- url: http://a:1\n  ca_file: nowhere.pem\n", "nowhere.pem", id="refers to nothing"),
]


@pytest.mark.parametrize(("content", "says"), BROKEN)
def test_a_broken_file_leaves_the_list_and_says_why_once(
    file: Looking, caplog: pytest.LogCaptureFixture, content: str, says: str
) -> None:
    file.path.write_text(content)
    with caplog.at_level(logging.ERROR):
        assert file.look() == instances("a", "b")
        assert file.look() == instances("a", "b")
    assert len(caplog.records) == 1
    trouble = file.discovery.trouble or ""
    assert str(file.path) in trouble
    assert says in trouble
    file.path.write_text(text(instances("a", "b", "c")))
    assert file.look() == instances("a", "b", "c")
    assert file.discovery.trouble is None


def test_a_file_that_went_away_and_came_back(file: Looking) -> None:
    content = file.path.read_text()
    file.path.unlink()
    assert file.look() == instances("a", "b")
    assert file.discovery.trouble is not None
    file.path.write_text(content)
    assert file.look() == instances("a", "b")
    assert file.discovery.trouble is None


def test_the_age_counts_from_the_last_time_that_the_file_was_right(file: Looking) -> None:
    file.clock.advance(5.0)
    file.look()
    assert file.discovery.confirmed_at == 5.0
    file.path.write_text("?:")
    file.clock.advance(5.0)
    file.look()
    assert file.discovery.confirmed_at == 5.0


def test_what_the_list_refers_to_may_come_later(file: Looking) -> None:
    file.path.write_text("- url: https://a:1\n  ca_file: ca.pem\n")
    assert file.look() == instances("a", "b")
    (file.path.parent / "ca.pem").write_bytes(make_self_signed(time.time())[1])
    found = file.look() or []
    assert [instance.ca_file for instance in found] == [str(file.path.parent / "ca.pem")]


async def test_a_comment_or_a_fault_mended_is_no_news(file: Looking) -> None:
    discovery = FileDiscovery(file.path, 0.001, SystemClock())
    async with watching(discovery) as lists:
        assert await next_of(lists) == instances("a", "b")
        for content in ("# a comment\n" + text(instances("a", "b")), "?:", text(instances("a", "b"))):
            file.path.write_text(content)
            await asyncio.to_thread(discovery.poll)
        file.path.write_text(text(instances("c")))
        assert await next_of(lists) == instances("c")
