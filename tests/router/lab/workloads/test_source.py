"""Names and files become workloads, made as big as wanted; what does not apply or exist is refused by name."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.errors import ConfigError, WarmrouteError
from router.features.decision_log.codec import RecordEncoder
from router.lab.workloads.presets import CODEX, GROUPS, PRESETS
from router.lab.workloads.source import load_workload
from tests.router.telemetry.records import a_record

GOOD = b"".join(
    b'{"timestamp": %d, "input_length": 600, "output_length": 7, "hash_ids": [0, %d]}\n' % (1000 * at, at + 1)
    for at in range(5)
)
BAD = b'{"timestamp": 1, "input_length": 600, "output_length": 7, "hash_ids": [0]}\n'


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, bytes], str]:
    def write(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(tmp_path / name)

    return write


def decision_log(*numbers: int) -> bytes:
    encoder = RecordEncoder(1)
    return encoder.start_file("run", "0", 0.0) + b"".join(
        encoder.encode_record(a_record(number, at_wall_s=1e9 + number)) for number in numbers
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_by_name(name: str) -> None:
    workload = load_workload(name, seed=3, tokens=0.1)
    assert workload == PRESETS[name].scale(tokens=0.1).workload(3)


def test_a_closed_loop_made_smaller() -> None:
    workload = load_workload("codex", sessions=4, turns=0.2, tokens=0.1, think=0.5)
    assert workload.is_closed
    assert len(workload.sessions) == 4
    same = CODEX.scale(sessions=4 / 610, turns=0.2, tokens=0.1, think=0.5).workload(1)
    assert workload.sessions == same.sessions


def test_an_open_loop_made_faster_and_longer() -> None:
    workload = load_workload("groups", rate=50.0, requests=1_000, seed=2)
    assert not workload.is_closed
    assert len(workload.sessions) == 1_000
    assert workload.sessions[-1].start_s == pytest.approx(1_000 / 50, rel=0.15)
    within = load_workload("groups", within_s=(1.0, 2.0))
    whole = [session for session in GROUPS.workload(1).sessions if 1.0 <= session.start_s < 2.0]
    assert [session.turns for session in within.sessions] == [session.turns for session in whole]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_mooncake_trace(file: Callable[[str, bytes], str], name: str) -> None:
    workload = load_workload(file(name, GOOD))
    assert (workload.name, len(workload.sessions), workload.is_closed) == ("a", 5, False)


def test_a_trace_at_another_rate(file: Callable[[str, bytes], str]) -> None:
    """Window first, then the first requests, then the rate of those."""
    workload = load_workload(file("a.jsonl", GOOD), rate=4.0, requests=3, within_s=(1.0, 5.0))
    assert [session.start_s for session in workload.sessions] == [0.0, 0.25, 0.5]
    assert [session.number for session in workload.sessions] == [1, 2, 3]


def test_a_trace_of_azures(file: Callable[[str, bytes], str]) -> None:
    lines = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,480,10\n2023-11-16 18:17:05,48,1\n"
    for name in ("code.csv", "code.csv.gz"):
        assert [session.start_s for session in load_workload(file(name, lines)).sessions] == [0.0, 2.0]


def test_a_ledger_by_file_and_folder(file: Callable[[str, bytes], str], tmp_path: Path) -> None:
    one = file("decisions-1.jsonl", decision_log(0, 1))
    packed = file("decisions-2.jsonl.gz", decision_log(2))
    assert [load_workload(given).turns for given in (one, packed, str(tmp_path))] == [2, 1, 3]
    assert [session.start_s for session in load_workload(str(tmp_path)).sessions] == [0.0, 1.0, 2.0]


def test_what_a_ledger_could_not_say_is_told(file: Callable[[str, bytes], str]) -> None:
    told: list[str] = []
    given = file("decisions-1.jsonl", decision_log(0, 1) + b'{"record":')
    assert load_workload(given, on_unusable=told.append).turns == 2
    assert told == [f"{given}: decisions-1.jsonl, line 5: the last line is not finished"]


def test_bad_lines_are_refused_or_told(file: Callable[[str, bytes], str]) -> None:
    given = file("a.jsonl", GOOD + BAD * 7)
    with pytest.raises(ConfigError) as refused:
        load_workload(given)
    assert "line 6: 1 hash_ids for 600 tokens" in str(refused.value)
    assert "and 2 more unusable lines" in str(refused.value)
    assert "5 requests could be used" in str(refused.value)
    told: list[str] = []
    assert len(load_workload(given, on_unusable=told.append).sessions) == 5
    assert [line.split(": ")[1] for line in told] == [f"line {number}" for number in range(6, 13)]


@pytest.mark.parametrize(
    ("given", "asked", "why"),
    [
        ("codx", {}, 'did you mean "codex"?'),
        ("nowhere.jsonl", {}, "nowhere.jsonl: no such file"),
        ("codex", {"rate": 2.0}, "codex is a closed loop: rate does not apply to it; what does: sessions"),
        ("codex", {"within_s": (0, 1)}, "within_s does not apply"),
        ("tools", {"sessions": 3}, "tools is an open loop: sessions does not apply to it; what does: requests, rate"),
        ("tools", {"think": 0.5}, "think does not apply"),
        ("groups", {"rate": 0.0}, "rate: 0.0: must be above 0"),
        ("groups", {"requests": -1}, "requests: -1: must be above 0"),
        ("groups", {"rate": float("nan")}, "rate: nan"),
        ("groups", {"within_s": (2.0, 1.0)}, "the first before the second"),
        ("groups", {"within_s": (1e6, 2e6)}, "there are no requests in it"),
    ],
)
def test_what_is_refused(given: str, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_workload(given, **asked)
    assert why in str(refused.value)


def test_what_is_refused_of_files(file: Callable[[str, bytes], str]) -> None:
    for name, content, asked, why in (
        ("a.txt", GOOD, {}, "the name must end in .jsonl"),
        ("a.jsonl", b"", {}, "there are no requests in it"),
        ("b.jsonl", BAD, {}, "0 requests could be used"),
        (
            "c.jsonl",
            GOOD,
            {"tokens": 2.0},
            "c.jsonl is a trace: tokens does not apply to it; what does: requests, rate",
        ),
        ("d.jsonl", GOOD, {"rate": 2.0, "requests": 1}, "all its requests come at once"),
    ):
        with pytest.raises(ConfigError) as refused:
            load_workload(file(name, content), **asked)
        assert why in str(refused.value)


def test_a_file_that_breaks_off_is_no_workload(tmp_path: Path) -> None:
    (broken := tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(GOOD * 50)[:-20])
    with pytest.raises(WarmrouteError, match="cannot be read"):
        load_workload(str(broken))
    (plain := tmp_path / "b.jsonl.gz").write_bytes(GOOD)
    with pytest.raises(WarmrouteError, match="cannot be read"):
        load_workload(str(plain))
