"""Every case passes with a picker that keeps all clauses, and fails with each that breaks its own one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.picker_conformance import wrong_bodies, wrong_choices, wrong_responses
from tests.picker_conformance.case import CaseResult, ConformanceCase
from tests.picker_conformance.channel import open_channel
from tests.picker_conformance.peer import PickerPeer, learn_fleet
from tests.picker_conformance.reference_picker import MODEL, ReferencePicker, serve
from tests.picker_conformance.suite import CASES, run_case
from tests.picker_conformance.wrong import WRONG

QUICK_S = 0.3  # a silent picker is waited for so long
PATIENT_S = 20.0
FLOOD = 502  # its many requests are all answered at once, and take longer than that on a busy machine
NUMBERS = {int(case.id.removeprefix("EPP-")): case for case in CASES}


@asynccontextmanager
async def peer_of(picker: ReferencePicker, timeout_s: float) -> AsyncIterator[PickerPeer]:
    async with serve(picker) as ports, open_channel("127.0.0.1", ports.port, False) as channel:
        peer = PickerPeer(channel, channel, timeout_s)
        yield replace(peer, fleet=await learn_fleet(peer, MODEL, tuple(picker.endpoints)))


async def run(case: ConformanceCase, picker: ReferencePicker, timeout_s: float) -> CaseResult:
    async with peer_of(picker, timeout_s) as peer:
        return await run_case(case, peer)


SOURCES = (wrong_choices, wrong_bodies, wrong_responses)  # importing them fills WRONG


def test_every_case_has_wrong_pickers() -> None:
    assert all(source.__name__ in {one.__module__ for found in WRONG.values() for one in found} for source in SOURCES)
    assert sorted(WRONG) == sorted(NUMBERS)
    assert len(NUMBERS) == len(CASES) == 78


class EmptyPool(ReferencePicker):
    endpoints = ()


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_right_picker_passes(number: int) -> None:
    picker = EmptyPool() if number == 501 else ReferencePicker()
    result = await run(NUMBERS[number], picker, PATIENT_S)
    assert result.result == "pass", result.received
    assert result.received


@pytest.mark.parametrize(
    ("number", "wrong"), [pytest.param(n, one, id=f"{n}-{one.__name__}") for n in WRONG for one in WRONG[n]]
)
async def test_a_wrong_picker_fails(number: int, wrong: type[ReferencePicker]) -> None:
    result = await run(NUMBERS[number], wrong(), PATIENT_S if number == FLOOD else QUICK_S)
    assert result.result == "fail", result.received
    assert result.received
