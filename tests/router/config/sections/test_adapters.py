"""The sections `adapters` and `adapter_loading`."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.reader import parse_config
from router.config.schema import Config
from router.errors import ConfigError

FLEET = "fleet: {instances: [{url: 'http://127.0.0.1:8100'}]}\n"


def read(text: str) -> Config:
    return parse_config(FLEET + text, "router.yaml", Path("/"))


def test_the_whole_of_it() -> None:
    config = read("adapters: {poet: {path: /adapters/poet, base: llama}}\nadapter_loading: {max_loaded: 2, wait_s: 5}")
    assert (config.adapters["poet"].path, config.adapters["poet"].base) == ("/adapters/poet", "llama")
    assert (config.adapter_loading.max_loaded, config.adapter_loading.wait_s) == (2, 5.0)
    assert not read("").adapters
    assert read("workers: 2\nadapters: {poet: {path: /a, base: b}}").workers == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adapters: {poet: {path: /a}}", "adapters.poet.base: missing (model that it belongs to"),
        ("adapters: {poet: {path: /a, base: b, rank: 8}}", 'unknown key "rank": known here: base, path'),
        ("adapter_loading: {max_loaded: 0}", "adapter_loading.max_loaded: found the number 0, wanted more than 0"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(text)
    assert message in str(refusal.value)
