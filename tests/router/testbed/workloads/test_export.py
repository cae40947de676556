"""Workloads as Mooncake lines, and back: the same lengths and prefixes; trace files are written whole or not at all."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from router.errors import ConfigError, WarmrouteError
from router.testbed.workloads.arrivals import OpenArrivals
from router.testbed.workloads.export import encode_mooncake, write_lines
from router.testbed.workloads.model import ClosedLoopPace, Session, Span, Turn, Workload
from router.testbed.workloads.presets import CODEX, TOOLS, Preset
from router.testbed.workloads.statistics import compute_statistics
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


@pytest.mark.parametrize("preset", [CODEX.scale(sessions=4 / 610, turns=0.2), replace(TOOLS, requests=300)])
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


def test_plain_and_packed(tmp_path: Path) -> None:
    lines = [b"one\n", b"two\n"]
    assert write_lines(tmp_path / "new" / "a.jsonl", lines) == 2
    assert write_lines(tmp_path / "a.jsonl.gz", lines) == 2
    assert (tmp_path / "new" / "a.jsonl").read_bytes() == b"one\ntwo\n"
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == b"one\ntwo\n"


def test_the_same_lines_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_lines(tmp_path / name, [b"one\n"])
    first, second = ((tmp_path / name).read_bytes() for name in ("a.jsonl.gz", "b.jsonl.gz"))
    assert first == second


def test_half_a_file_does_not_stay(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"one\n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / "a.jsonl", failing())
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.jsonl"):
        write_lines(tmp_path / "a.csv", [])
    (tmp_path / "file").touch()
    with pytest.raises(WarmrouteError, match="--out"):
        write_lines(tmp_path / "file" / "a.jsonl", [])
