"""Traces read as workloads, and workloads written as traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ConfigError, WarmrouteError
from router.features.decision_log.codec import RecordEncoder
from router.features.decision_log.format import LoggedRecord, decode
from router.lab.workloads.arrivals import OpenArrivals
from router.lab.workloads.block_names import SessionContext
from router.lab.workloads.model import ClosedLoopPace, Session, Span, Turn, Workload
from router.lab.workloads.presets import CODEX, TOOLS, Preset
from router.lab.workloads.statistics import compute_statistics
from router.lab.workloads.traces import (
    HashIdTree,
    encode_mooncake,
    read_azure,
    read_decision_log,
    read_mooncake,
    write_lines,
)
from router.scheduling.policy.record import Stages
from tests.router.telemetry.records import a_record

LINES = [
    b'{"timestamp": 2000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]}\n',
    b'{"timestamp": 2000, "input_length": 1500, "output_length": 0, "hash_ids": [0, 3, 4], "more": "is passed over"}\n',
    b'{"timestamp": 5500, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 2]}\n',
]
PACE = ClosedLoopPace(at_once=2)


def prompts(workload: Workload) -> list[tuple[Span, ...]]:
    return [session.turns[0].fresh for session in workload.sessions]


def names(spans: tuple[Span, ...] | list[Span]) -> list[int]:
    context = SessionContext(512)
    for span in spans:
        context.add(span)
    return list(context.names)


def a_logged(number: int, blocks: tuple[int, ...] = (), **known: object) -> LoggedRecord:
    line = decode(RecordEncoder(1).encode_record(a_record(number, blocks=blocks)).splitlines()[-1])
    assert line.record is not None
    return msgspec.structs.replace(line.record, **known)


def test_a_mooncake_trace_is_an_open_loop_that_begins_at_zero() -> None:
    workload, unusable = read_mooncake(LINES, "some")
    assert unusable == ()
    assert (workload.name, workload.is_closed, len(workload.sessions)) == ("some", False, 3)
    assert [session.start_s for session in workload.sessions] == [0.0, 0.0, 3.5]
    assert [session.turns[0].prompt_tokens for session in workload.sessions] == [1100, 1500, 1100]
    assert [session.turns[0].output_tokens for session in workload.sessions] == [7, 1, 9]  # an engine says one at least


def test_ids_become_few_spans_that_share_as_much() -> None:
    first, second, third = prompts(read_mooncake(LINES, "some").workload)
    assert first == third == (Span(0, 1100),)
    assert second == (Span(0, 512), Span(1, 988))
    # infinite cache: 512 of the second; of the third its 2 whole blocks
    assert compute_statistics(read_mooncake(LINES, "some").workload, 512).ideal_share == (512 + 1024) / 3700


def test_requests_are_put_in_order() -> None:
    workload, _ = read_mooncake(LINES[::-1], "some")
    assert [session.start_s for session in workload.sessions] == [0.0, 0.0, 3.5]
    assert [session.turns[0].prompt_tokens for session in workload.sessions] == [1500, 1100, 1100]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\n", "truncated"),
        (b'{"timestamp": 1}\n', "missing required field `input_length`"),
        (b'{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []}\n', "`int` >= 1"),
        (b'{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [9]}\n', ">= 0"),
        (b'{"timestamp": 1, "input_length": 513, "output_length": 1, "hash_ids": [9]}\n', "1 hash_ids for 513 tokens"),
        (b'{"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n', "hash id 1 came after"),
        (b'{"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [0, 2]}\n', "hash id 2 came after"),
        (b'{"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [8, 8]}\n', "hash id 8 came after"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_is_taken(line: bytes, why: str) -> None:
    workload, (bad,) = read_mooncake([*LINES, line, LINES[0]], "some")
    assert bad.where == "line 4"
    assert why in bad.why
    assert str(bad) == f"line 4: {bad.why}"
    assert len(workload.sessions) == 4


def test_an_empty_trace_is_empty() -> None:
    assert read_mooncake([], "none").workload.turns == 0
    assert read_azure([b"TIMESTAMP,ContextTokens,GeneratedTokens\n"], "none").workload.turns == 0


tree = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=25)


@given(tree)
def test_spans_share_exactly_the_blocks_that_ids_share(paths: list[list[int]]) -> None:
    """Each path of choices is a prompt; a block's id is the path so far. Names over spans agree wherever ids do."""
    ids: dict[tuple[int, ...], int] = {}
    chains = HashIdTree()
    named: dict[int, int] = {}
    for path in paths:
        own = [ids.setdefault(tuple(path[: depth + 1]), len(ids)) for depth in range(len(path))]
        spans = chains.prompt(own, 512 * len(own))
        assert all(before.source != after.source for before, after in pairwise(spans))
        for hash_id, name in zip(own, names(spans), strict=True):
            assert named.setdefault(hash_id, name) == name
    assert len(set(named.values())) == len(named)


def test_azure_knows_no_prefixes_and_two_ways_to_write_a_time() -> None:
    lines = [
        b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n",
        b"2023-11-16 18:17:03.9799600,4808,10\r\n",
        b"2024-05-10 00:00:00.009930+00:00,100,0\n",
        b"2023-11-16 18:17:04.4799600,4808,8\n",
    ]
    workload, unusable = read_azure(lines, "code")
    assert unusable == ()
    assert [session.start_s for session in workload.sessions[:2]] == pytest.approx([0.0, 0.5], abs=1e-6)
    assert [session.turns[0].prompt_tokens for session in workload.sessions] == [4808, 4808, 100]
    assert len({spans[0].source for spans in prompts(workload)}) == 3


def test_azures_bad_lines_are_named() -> None:
    lines = [
        b"time,in,out\n",
        b"yesterday,1,1\n",
        b"2023-11-16 18:17:03,0,1\n",
        b"2023-11-16 18:17:03,1\n",
        b"\xff,1,1\n",
    ]
    workload, unusable = read_azure(lines, "code")
    assert workload.turns == 0
    assert [bad.where for bad in unusable] == [f"line {number}" for number in range(1, 6)]
    assert "TIMESTAMP" in unusable[0].why
    assert "0 tokens in" in unusable[2].why


def test_a_ledger_shares_what_its_digests_share() -> None:
    records = [
        a_logged(0, (11, 12), input_length=1100, timestamp=5_000),
        a_logged(1, (11, 13), input_length=1030, timestamp=5_250),
        a_logged(2, (), input_length=600, timestamp=5_500),
    ]
    workload, unusable = read_decision_log(records, "mine")
    assert unusable == ()
    assert [session.start_s for session in workload.sessions] == [0.0, 0.25, 0.5]
    first, second, third = prompts(workload)
    assert [span.tokens for span in first] == [1024, 76]  # nobody knows what the last 76 are
    assert [span.tokens for span in second] == [512, 512, 6]
    assert first[0].source == second[0].source
    assert [span.tokens for span in third] == [600]


def test_an_engines_count_may_be_shorter_than_ours() -> None:
    (spans,) = prompts(read_decision_log([a_logged(0, (11, 12), input_length=1000)], "mine").workload)
    assert [span.tokens for span in spans] == [512, 488]


def test_requests_of_a_session_have_its_number_and_their_own_times() -> None:
    records = [a_logged(number, timestamp=1000 * number) for number in range(3)]
    other = records[1].attempts[0]
    records[1] = msgspec.structs.replace(
        records[1], attempts=[msgspec.structs.replace(other, view=other.view._replace(session=None))]
    )
    workload, _ = read_decision_log(records, "mine")
    assert [session.number for session in workload.sessions] == [0, 1, 0]
    assert [session.start_s for session in workload.sessions] == [0.0, 1.0, 2.0]


def test_a_request_without_an_answer_or_a_count_is_named() -> None:
    records = [
        a_logged(0, output_length=None, status=503, error="unplaced"),
        a_logged(1, input_length=None),
        a_logged(2, stages=Stages()),
    ]
    workload, unusable = read_decision_log(records, "mine")
    assert workload.turns == 1
    assert [str(bad) for bad in unusable] == [
        "record run-0: it has no answer (status 503, unplaced)",
        "record run-1: its prompt was not counted",
    ]


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
