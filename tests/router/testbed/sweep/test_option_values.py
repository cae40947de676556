"""Options as they are written."""

from __future__ import annotations

import pytest

from router.errors import ConfigError
from router.testbed.simulator.scenario import EventLags
from router.testbed.sweep import option_values


def test_lists_have_commas_and_each_value_once() -> None:
    assert option_values.parse_list("--instances", "8, 4,8,") == ["8", "4"]
    with pytest.raises(ConfigError, match="--instances: no value found"):
        option_values.parse_list("--instances", " , ")


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "nan", "inf"])
def test_a_whole_number_is_wanted(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--instances: found '{text}'"):
        option_values.parse_whole("--instances", text)


def test_numbers_may_be_written_for_people() -> None:
    assert option_values.parse_number("--rate", "1.5e2") == 150.0
    assert option_values.parse_whole("--pool", "2e6") == 2_000_000
    assert option_values.parse_whole("--pool", "150_000") == 150_000


def test_what_keeps_kv_is_off_or_a_speed_or_a_speed_and_a_size() -> None:
    assert option_values.parse_memory("--pool", "off") is None
    assert option_values.parse_memory("--pool", "40000") == option_values.MemoryOption(40_000.0, None)
    assert option_values.parse_memory("--pool", "40000:2e6") == option_values.MemoryOption(40_000.0, 2_000_000)


@pytest.mark.parametrize("text", ["on", "0", "40000:", ":5", "40000:-1"])
def test_nothing_that_could_keep_kv(text: str) -> None:
    with pytest.raises(ConfigError, match="--host-memory: found"):
        option_values.parse_memory("--host-memory", text)


def test_lags_are_two_numbers_in_milliseconds() -> None:
    assert option_values.parse_lags("200:500") == EventLags(0.2, 0.5)
    assert option_values.parse_lags("0:50") == EventLags(0.0, 0.05)


@pytest.mark.parametrize("text", ["50", "50:", "a:b", "-1:50", "50:0", "inf:1", "nan:1"])
def test_no_lags(text: str) -> None:
    with pytest.raises(ConfigError, match="--lags: found"):
        option_values.parse_lags(text)
