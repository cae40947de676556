"""Answers reach the client through the router as the engine sends them, whatever their shape.

`make test` sends every fourth answer in the default configuration; `make test-oracle` sends all in each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import pytest_asyncio

from tests.abuse.hostile_engine import HostileEngine, hostile_engine, models, pouring
from tests.fakes.engines import eventually
from tests.oracle import answers
from tests.oracle.answers import Answer
from tests.oracle.comparison import Comparison, find_error_fault
from tests.oracle.conftest import Twins
from tests.oracle.corpus import BY_CACHE, MESSAGES, MODEL, RESPONSES, Case, encode, post
from tests.oracle.differences import read_differences
from tests.oracle.http1 import Reply, exchange
from tests.oracle.test_requests import OFF, ON

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATHS = (*BY_CACHE, "/v1/embeddings")
CONFIGS = {"default": {**ON, "active": "warm", "policies": {}}, "bare": {**OFF, "usage": "observe"}}
SENT = (answers.statuses, answers.framings, answers.bodies, answers.streams, answers.errors)
SAMPLE = 4  # of so many answers `make test` sends one


def _groups() -> Iterator[Any]:
    for sent in SENT:
        yield pytest.param("default", sent, SAMPLE, id=f"default-{sent.__name__}, a sample")
    for config in CONFIGS:
        for sent in SENT:
            yield pytest.param(config, sent, 1, id=f"{config}-{sent.__name__}", marks=pytest.mark.oracle)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def odd_engine() -> AsyncIterator[HostileEngine]:
    async with hostile_engine(models=models(MODEL)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def twins(request: pytest.FixtureRequest, odd_engine: HostileEngine, router_of_module: Any) -> AsyncIterator[Any]:
    config = dict(CONFIGS[request.param])
    config |= {"tokenizers": {}, "fleet": {"breaker": {"failures": 1_000_000}}}
    async with router_of_module([odd_engine.url], wait=False, **config) as running:
        await eventually(lambda: running.app.unready_reason() is None)
        yield Twins(odd_engine.url, running, Comparison(read_differences()))


@pytest.mark.parametrize(("twins", "sent", "step"), [*_groups()], indirect=["twins"])
async def test_answers(
    twins: Twins, odd_engine: HostileEngine, sent: Callable[[], Iterable[Answer]], step: int
) -> None:
    faults: list[str] = []
    for answer in islice(sent(), 0, None, step):
        for path in PATHS:
            odd_engine.answers[path] = pouring([answer.raw])
        faults += await twins.compare(_cases(answer))
    assert not faults, "\n".join([f"{len(faults)} faults:", *faults[:50]])


@pytest.mark.parametrize("twins", CONFIGS, indirect=True)
async def test_broken_answers(twins: Twins, odd_engine: HostileEngine) -> None:
    """An engine asked directly cuts the connection; through the router every client reads an error in its own form."""
    faults: list[str] = []
    for answer in answers.broken():
        for path in PATHS:
            odd_engine.answers[path] = pouring([answer.raw])
        for case in _cases(answer):
            reply = await exchange(twins.router.url, case.request)
            if not _reports_the_break(case, reply):
                faults.append(f"{case.name}: {reply}")
    assert not faults, "\n".join(faults)


def _reports_the_break(case: Case, reply: Reply) -> bool:
    """Return whether an answer reports that it broke off: with 502, or with an error event behind whole events. An
    answer whose last event has arrived is whole.
    """
    if reply.status == 502:
        return find_error_fault(case, reply) is None
    if reply.body.endswith(answers.DONE):
        return reply.whole
    event = b"event: error\ndata: {" if case.request.path in (MESSAGES, RESPONSES) else b'data: {"error":'
    begun, found, _ = reply.body.rpartition(event)
    return reply.whole and bool(found) and (not begun or begun.endswith(b"\n\n"))


def _cases(answer: Answer) -> Iterable[Case]:
    for path in PATHS:
        yield post(answer.name, path, encode(path), *answer.rows)
    for path in BY_CACHE:
        yield post(f"{answer.name}, streamed", path, encode(path, stream=True), *answer.rows)
