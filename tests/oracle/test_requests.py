"""Requests are answered through the router as by the engine asked directly, in every configuration.

`make test` sends all kinds but one in the default configuration, and those of real clients in the others;
`make test-oracle` sends all in each.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.conftest import TOKENIZER
from tests.fakes.engines import engine
from tests.fakes.otlp import receiver
from tests.oracle import corpus
from tests.oracle.comparison import Comparison
from tests.oracle.conftest import Twins, batched
from tests.oracle.corpus import MODEL, Case
from tests.oracle.differences import read_differences
from tests.oracle.http1 import Headers
from tests.oracle.record import read_statuses

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEFAULT = "default"
KEY = b"oracle-key"
LOCAL = {MODEL: {"path": TOKENIZER}}
OFF: dict[str, Any] = {"tokens": {"token_id_passthrough": "off"}, "limits": {"continuation_bytes": 0}}
ON: dict[str, Any] = {"tokens": {"token_id_passthrough": "auto"}, "limits": {"continuation_bytes": 64 * 1024 * 1024}}
LIMITED = {"requests_per_minute": 1_000_000, "tokens_per_minute": 10**9, "concurrent": 100, "budget_per_day": 1e9}
CONFIGS: Mapping[str, dict[str, Any]] = {
    DEFAULT: {**ON, "tokenizers": {}, "policies": {}, "active": "warm"},
    "bare": {**OFF, "tokenizers": {}, "usage": "observe"},
    "token ids passed": {**ON, "tokenizers": LOCAL},
    "usage observed": {**ON, "usage": "observe"},
    "aliases": {**ON, "models": {"chat": {"to": MODEL}, MODEL: {"to": MODEL}}},
    "tenants": {**ON, "clients": {"service_classes": {"default": {"limits": LIMITED}}, "isolation": "tenant"}},
    "tracing": {**ON, "tracing": {"sample_ratio": 1.0}},
}
IN_DEFAULT = (corpus.clients, corpus.streams, corpus.some_wrong_types, corpus.methods, corpus.malformed)
ALL = (*IN_DEFAULT, corpus.wrong_types)


def _pairs() -> Iterator[Any]:
    for config in CONFIGS:
        quick = IN_DEFAULT if config == DEFAULT else (corpus.clients,)
        for cases in ALL:
            yield pytest.param(
                config, cases, id=f"{config}-{cases.__name__}", marks=() if cases in quick else pytest.mark.oracle
            )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def twins(
    request: pytest.FixtureRequest, router_of_module: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Twins]:
    config, key = CONFIGS[request.param], Headers()
    with ExitStack() as stack:
        if "clients" in config:
            file = tmp_path_factory.mktemp("keys") / "keys"
            file.write_text(f"{hashlib.sha256(KEY).hexdigest()} oracle\n")
            config = config | {"clients": config["clients"] | {"keys_file": str(file)}}
            key = ((b"authorization", b"Bearer " + KEY),)
        if "tracing" in config:
            traces = stack.enter_context(receiver())
            config = config | {"tracing": config["tracing"] | {"endpoint": traces.url}}
        async with (
            engine(answer_tokens=4) as direct,
            engine(answer_tokens=4) as behind,
            router_of_module([behind], **config) as running,
        ):
            twins = Twins(direct.url, running, Comparison(read_differences(), read_statuses()), key)
            await twins.warm_up()
            yield twins


@pytest.mark.parametrize(("twins", "cases"), [*_pairs()], indirect=["twins"])
async def test_requests(twins: Twins, cases: Callable[[], Iterable[Case]]) -> None:
    faults = await twins.compare(cases())
    assert not faults, "\n".join([f"{len(faults)} faults:", *faults[:50]])


@pytest.mark.parametrize("twins", [DEFAULT, "tenants"], indirect=True)
async def test_every_listed_difference_is_one(twins: Twins) -> None:
    """A row of the table that no request needs would hide the next fault of its kind."""
    rows = set(read_differences().answers)
    for cases in ALL:
        needed = (case for case in cases() if rows.intersection(case.rows) - twins.comparison.used)
        for batch in batched(needed, 50):
            assert await twins.compare(batch) == []
    assert rows - twins.comparison.used == set()


async def test_two_workers(fleet_config: Any, router_process: Any) -> None:
    async with engine(answer_tokens=4) as direct, engine(answer_tokens=4) as behind:
        config = fleet_config([behind], **CONFIGS[DEFAULT], workers=2)
        async with router_process(config) as running:
            twins = Twins(direct.url, running, Comparison(read_differences(), read_statuses()))
            await twins.warm_up()
            for cases in (corpus.clients, corpus.streams, corpus.some_wrong_types):
                assert await twins.compare(cases()) == []
            assert b"Traceback" not in running.log
