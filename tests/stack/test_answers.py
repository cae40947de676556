"""The recorded answers to odd and wrong requests, which emulated engines give too, are a real engine's."""

from __future__ import annotations

import httpx
import pytest

from tests.stack.engines import Engine
from tests.suites.engine_answers import ask, recorded

pytestmark = pytest.mark.stack


def test_the_recording_is_right(engines: list[Engine]) -> None:
    url = httpx.URL(engines[0].url)
    assert url.port is not None
    for case in recorded():
        assert ask(url.host, url.port, case) == case.answer, case
