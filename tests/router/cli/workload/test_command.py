"""`warmroute workload` as people type it: the table beside what was published, JSON, and a trace that reads back."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from router.cli.workload.command import workload as commands
from router.lab.workloads.source import load_workload


def run(*words: str) -> str:
    result = CliRunner().invoke(commands, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def row(told: str, name: str) -> list[str]:
    (line,) = [line for line in told.splitlines() if line.strip().startswith(name)]
    return line.strip().removeprefix(name).split()


def test_stats_beside_what_was_published() -> None:
    told = run("stats", "tools", "--requests", "2000")
    assert "open loop" in told
    assert "512" in told
    assert row(told, "requests") == ["2,000", "23,608"]
    assert row(told, "output, mean")[1] == "182"


def test_stats_of_a_closed_loop_are_in_blocks_of_16() -> None:
    told = run("stats", "scaling", "--sessions", "2", "--scale", "0.1")
    assert "closed loop, ideal hits in whole blocks of 16 tokens" in told
    assert row(told, "sessions")[0] == "2"
    assert row(told, "first prompt, mean") == ["3,000", "30,000"]


def test_stats_as_json() -> None:
    told = json.loads(run("stats", "groups", "--requests", "50", "--seed", "4", "--json"))
    assert (told["workload"], told["seed"], told["turns"], told["mean_input_tokens"]) == ("groups", 4, 50, 7200)
    assert told["blocks"]["most_uses"] >= 1
    assert told["published"]["input, mean"] == "7,200"


def test_written_it_reads_back(tmp_path: Path) -> None:
    out = tmp_path / "small.jsonl.gz"
    run("write", "codex", "--sessions", "3", "--scale", "0.1", "--at-once", "2", "--out", str(out))
    assert load_workload(str(out)).turns == load_workload("codex", sessions=3).turns
    told = run("stats", str(out))
    assert "open loop" in told
    assert "published" not in told


def test_lines_left_out_are_told_the_first_few_by_name(tmp_path: Path) -> None:
    (trace := tmp_path / "a.jsonl").write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 7, "hash_ids": [0]}\n' + "nothing\n" * 8
    )
    result = CliRunner().invoke(commands, ["stats", str(trace)], catch_exceptions=False)
    told = result.stderr.splitlines()
    assert len(told) == 6
    assert told[0].startswith(f"{trace}: line 2: ")
    assert told[-1] == f"{trace}: 8 lines in all were left out"
