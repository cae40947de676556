"""The doctor finds nothing wrong with healthy fleets of ten kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from router.operate.doctor import gather
from tests.router.operate.doctor.conftest import Json, alarms, examined, running

pytestmark = pytest.mark.doctor


def as_it_is(config: Json) -> Json:
    return config


def without_tokenizers(config: Json) -> Json:
    return config | {"tokenizers": {}}


def without_events(config: Json) -> Json:
    for instance in config["fleet"]["instances"]:
        instance["kv_events"] = "off"
    return config


def with_workers(config: Json) -> Json:
    return config | {"workers": 2}


def with_picker(config: Json) -> Json:
    return config | {"picker": {"port": 0, "health_port": 0}}


P: Json = {"role": "prefill"}
D: Json = {"role": "decode"}
HEALTHY: dict[str, tuple[list[Json], bool, Callable[[Json], Json]]] = {
    "one engine": ([{}], False, as_it_is),
    "data parallel": ([{"ranks": 2}, {"ranks": 2}], False, as_it_is),
    "mooncake pairs": ([P | {"transfer": "mooncake"}, D | {"transfer": "mooncake"}], False, as_it_is),
    "nixl pairs": ([P | {"transfer": "nixl"}, D | {"transfer": "nixl"}], False, as_it_is),
    "shared pool": ([{}, {}], True, as_it_is),
    "adapters and an API key": ([{"loras": ("sql", "law")}, {"loras": ("sql", "law")}], False, as_it_is),
    "several models": ([{}, {"model": "other"}], False, as_it_is),
    "tokens from the engines": ([{}, {}], False, without_tokenizers),
    "no events on purpose": ([{"events": False}, {}], False, without_events),
    "several workers": ([{}, {}], False, with_workers),
    "behind a gateway": ([{}, {}], False, with_picker),
    "large blocks, old wire format": (
        [{"block_tokens": 128, "version": "0.22.1", "events_format": "array"}],
        False,
        as_it_is,
    ),
}


@pytest.mark.parametrize("kind", HEALTHY)
async def test_a_healthy_fleet(kind: str, tmp_path: Path) -> None:
    engines, pool, change = HEALTHY[kind]
    async with running(*engines, pool=pool) as fleet:
        examination = await examined(tmp_path / "main.yaml", change(fleet.config()))
    assert alarms(examination) == []
    assert examination.engines == len(engines)
    assert len(examination.checks) > 10


async def test_a_fleet_that_was_examined_before(tmp_path: Path) -> None:
    """What a chat template puts first is cached from then on, and announced no more."""
    async with running() as fleet:
        for _ in range(2):
            assert alarms(await examined(tmp_path / "main.yaml", fleet.config())) == []


async def test_what_a_slow_engine_does_not_answer_in_time_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "PROBE_TIMEOUT_S", 3.0)
    async with running({"prefill_tokens_per_s": 100}) as fleet:
        examination = await examined(tmp_path / "main.yaml", fleet.config())
    (found,) = examination.findings
    assert (found.finding.severity, found.finding.check) == ("unchecked", "unfinished")
    assert "engine-0 (messages)" in found.finding.at
    assert examination.faults == 0
