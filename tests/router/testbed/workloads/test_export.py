"""Workloads as Mooncake lines, and back: the same lengths, and the same beginnings shared."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from router.testbed.workloads import CODEX, TOOLS, OpenArrivals, Preset, Session, Span, Turn, Workload
from router.testbed.workloads.export import encode_mooncake
from router.testbed.workloads.statistics import compute_statistics
from router.testbed.workloads.timeline import ClosedLoopPace
from router.testbed.workloads.traces import read_mooncake

PACE = ClosedLoopPace(at_once=2)


def test_lines_by_hand() -> None:
    prompts = ((Span(1, 600),), (Span(1, 512), Span(2, 512)), (Span(1, 600),), (Span(1, 599),))
    sessions = (Session(at, at / 4, (Turn(0, spans, 5, 0.0),)) for at, spans in enumerate(prompts))
    lines = encode_mooncake(Workload("some", 0, OpenArrivals.of(sessions), is_closed=False))
    assert [json.loads(line) for line in lines] == [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 250, "input_length": 1024, "output_length": 5, "hash_ids": [0, 2]},
        {"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 750, "input_length": 599, "output_length": 5, "hash_ids": [0, 3]},  # another partial block
    ]


@pytest.mark.parametrize("preset", [CODEX.scaled(sessions=4 / 610, turns=0.2), replace(TOOLS, requests=300)])
def test_read_back_it_has_the_same_requests(preset: Preset) -> None:
    lines = list(encode_mooncake(preset.workload(1), PACE))
    workload, unusable = read_mooncake(lines, "back")
    assert unusable == ()
    assert all(line.endswith(b"\n") for line in lines)
    assert [json.loads(line)["input_length"] for line in lines] == [
        session.turns[0].prompt_tokens for session in workload.sessions
    ]
    again = list(encode_mooncake(workload))
    assert [json.loads(line)["hash_ids"] for line in again] == [json.loads(line)["hash_ids"] for line in lines]


def test_read_back_an_open_loop_has_the_same_ideal() -> None:
    workload = replace(TOOLS, requests=300).workload(1)
    back = read_mooncake(encode_mooncake(workload), "back").workload
    assert compute_statistics(back, 512).ideal_share == compute_statistics(workload, 512).ideal_share
