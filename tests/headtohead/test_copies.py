"""The comparison of copies, with our own router in the place of an original: it agrees with its own policy only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from router.errors import WarmrouteError
from router.lab.local_stack.preflight import free_ports
from router.lab.workloads.presets import CODEX
from tests.agreement.served import policy
from tests.bench import routers
from tests.bench.routers import Running
from tests.headtohead.contenders import Contender
from tests.headtohead.copies import compare
from tests.headtohead.engines import Engine
from tests.headtohead.held_engines import read_token_ids, write_text
from tests.headtohead.loads import Load

FEW = Load("few", "four agents", CODEX.scale(tokens=0.02, sessions=0.02).workload, agents=4)


def least_requests(engines: Sequence[Engine], folder: Path) -> AbstractContextManager[Running]:
    return routers.warmroute([engine.port for engine in engines], folder, {"active": "least_requests"})


@pytest.mark.parametrize(("copy", "agrees"), [("least_requests", True), ("sglang_threshold", False)])
def test_a_router_agrees_with_its_own_policy_only(copy: str, agrees: bool) -> None:
    found = compare(Contender("ours", least_requests), policy(copy), FEW, seed=1)
    assert found.choices >= 40
    assert (found.same == 1.0) is agrees


@pytest.mark.parametrize("change", [{"routers": 2}, {"restart_at_s": 100.0}])
def test_each_of_two_routers_gets_some_of_the_requests(change: dict[str, Any]) -> None:
    placed: list[int] = []

    @contextmanager
    def counting(engines: Sequence[Engine], folder: Path) -> Iterator[Running]:
        with least_requests(engines, folder) as router:
            yield router
            placed.append(len(router.get_admin("/admin/records?limit=1000")["records"]))

    found = compare(Contender("ours", counting), policy("least_requests"), FEW._replace(**change), seed=1)
    assert len(placed) == 2
    assert sum(placed) == found.choices
    assert min(placed) > found.choices / 4


def refuse_all(engines: Sequence[Engine], folder: Path) -> AbstractContextManager[Running]:
    (folder / "health").write_text("ok")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    return routers.served("refusing", command, port, folder)


def test_a_router_that_fails_ends_the_match() -> None:
    with pytest.raises(WarmrouteError, match="no engine got a request: 501"):
        compare(Contender("refusing", refuse_all), policy("least_requests"), FEW, seed=1)


def test_a_text_has_the_token_ids_of_its_blocks() -> None:
    body = b'{"messages":[{"role":"user","content":"%b"}]}' % write_text([0xABCD, 1 << 63]).encode()
    ids = read_token_ids(body)
    assert len(ids) == 32
    assert ids[:16] == ids[:4] * 4
    assert ids[16:] != ids[:16]
