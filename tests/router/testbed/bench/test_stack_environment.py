"""Where a benchmark's engines come from. That a stack is started where none runs is tested with the real one."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from router.config.schema import Config
from router.errors import ConfigError
from router.testbed.bench.stack_environment import environment_factory
from tests.fakes.engines import engine


def test_without_a_stack_section_there_is_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stack: is needed"):
        environment_factory(Config(), tmp_path, print)


async def test_a_stack_that_runs_is_measured_as_it_is(tmp_path: Path) -> None:
    told: list[str] = []
    async with engine(model="m") as fake:
        section = {"engines": 1, "first_port": urlsplit(fake.url).port, "served_name": "m", "store": False}
        settings = Config.model_validate({"stack": section})
        async with environment_factory(settings, tmp_path, told.append)(True) as site:
            assert site.engines == (fake.url,)
    assert told == [f"measuring the stack that runs at {fake.url}"]
