"""`warmroute advise` as people type it, on a small trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from router.cli.advise.command import advise
from router.errors import ConfigError

app = typer.Typer()
app.command()(advise)


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_tables_sentences_json_and_chart(tmp_path: Path) -> None:
    told = run("tools", "--requests", "300", "-n", "1,2", "--profile", "llama-3.1-8b-h100", "--out", str(tmp_path))
    assert "tools: 300 requests on llama-3.1-8b-h100; all different blocks are" in told
    assert "hits, % of the prompts' tokens" in told
    assert "2 instances, no pool: placed by prefix, not at random: +" in told
    found = json.loads((tmp_path / "advice.json").read_bytes())
    assert {(cell["instances"], cell["placement"]) for cell in found["cells"]} == {
        (1, "by prefix"),
        (2, "by prefix"),
        (2, "at random"),
    }
    assert (tmp_path / "advice.png").exists()


def test_a_closed_loop_and_sizes_of_ones_own(tmp_path: Path) -> None:
    told = run(
        "codex", "--sessions", "4", "--scale", "0.2", "-n", "2", "--pool-gb", "1,50", "--no-chart", "-o", str(tmp_path)
    )
    assert "no pool  1 GB  50 GB" in told
    assert not (tmp_path / "advice.png").exists()


def test_the_same_question_has_the_same_answer() -> None:
    words = ("groups", "--requests", "200", "-n", "4", "--pool-gb", "10", "--seed", "3")
    assert run(*words) == run(*words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["groups", "-n", "0"], "--instances: found '0'"),
        (["groups", "--pool-gb", "much"], "--pool-gb: found 'much'"),
        (["groups", "--profile", "qwen"], 'unknown profile "qwen"'),
        (["grups"], 'did you mean "groups"'),
        (["codex", "--requests", "5"], "requests does not apply"),
    ],
)
def test_what_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(*words)
    assert why in str(refused.value)
