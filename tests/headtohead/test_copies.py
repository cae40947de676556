"""The comparison of copies, with our own router in the place of an original: it agrees with its own policy only."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.bench import routers
from tests.bench.routers import Running
from tests.headtohead.copies import Pair, compare, shorten
from tests.headtohead.held_engines import read_token_ids, write_text
from tests.headtohead.loads import LOADS

AGENTS = LOADS[0]


def least_requests(ports: list[int], folder: Path) -> AbstractContextManager[Running]:
    return routers.warmroute(ports, folder, {"active": "least_requests"})


@pytest.mark.parametrize(("copy", "agrees"), [("least_requests", True), ("sglang_threshold", False)])
def test_a_router_agrees_with_its_own_policy_only(copy: str, agrees: bool) -> None:
    found = compare(Pair("ours", least_requests, copy), AGENTS, seed=1, requests=40)
    assert found.choices >= 40
    assert (found.same == 1.0) is agrees
    assert found.copy.requests == found.original.requests == found.choices


def test_a_text_has_the_token_ids_of_its_blocks() -> None:
    body = b'{"messages":[{"role":"user","content":"%b"}]}' % write_text([0xABCD, 1 << 63]).encode()
    ids = read_token_ids(body)
    assert len(ids) == 32
    assert ids[:16] == ids[:4] * 4
    assert ids[16:] != ids[:16]


def test_a_shortened_load_has_whole_sessions() -> None:
    whole = AGENTS.make(1)
    short = shorten(whole, 40)
    assert 40 <= short.turns < 40 + max(len(one.turns) for one in whole.sessions)
