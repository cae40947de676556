"""The command: exit codes, and what is said where. What runs a router or an engine is run in `tests/e2e`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from router.cli import main
from router.config.reader import read_policy_file
from router.config.schema import PolicyConfig
from tests.paths import CONFIGS

OURS = sorted({*CONFIGS.glob("**/*.yaml")} - {*CONFIGS.glob("mooncake/*")})  # the others are for other programs
POLICY = "scorers: [{name: random}]\n"
MAIN = "fleet: {instances: [{url: 'http://10.0.0.1:8000'}]}\npolicies: {warm: {scorers: [{name: random}]}}\n"


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Shell:
    """Runs the command in this process, as the entry point does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._folder = folder

    def __call__(self, *words: str | Path) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["warmroute", *map(str, words)])
        code = 0
        try:
            main.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *self._capsys.readouterr())

    def file(self, text: str, name: str = "main.yaml") -> Path:
        file = self._folder / name
        file.write_text(text)
        return file


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return Shell(monkeypatch, capsys, tmp_path)


# words


def test_help_names_every_command(shell: Shell) -> None:
    said = shell("--help")
    assert said.code == 0
    for command in ("serve", "fleet", "stack", "bench", "engine", "check"):
        assert command in said.out


@pytest.mark.parametrize("command", ["serve", "fleet", "stack", "bench", "engine", "check"])
def test_every_command_has_help(shell: Shell, command: str) -> None:
    said = shell(command, "--help")
    assert said.code == 0
    assert command in said.out


@pytest.mark.parametrize(
    "words",
    [[], ["sevre"], ["serve"], ["serve", "--config", "/no/such/file"], ["check"], ["check", "/no/such/file"],
     ["engine", "--port", "x"], ["serve", "--prot", "1"]],
)  # fmt: skip
def test_a_wrong_command_is_2(shell: Shell, words: list[str]) -> None:
    said = shell(*words)
    assert said.code == 2
    assert said.out + said.err != ""
    assert "Traceback" not in said.err


# check


def test_check_prints_a_main_file_with_every_default(shell: Shell) -> None:
    said = shell("check", shell.file(MAIN))
    assert (said.code, said.err) == (0, "")
    shown = yaml.safe_load(said.out)
    assert shown["listen"]["port"] == 8000
    assert shown["fleet"]["instances"][0]["kv_events"] == "auto"
    assert shown["policies"]["warm"]["picker"] == {"name": "best"}


def test_what_check_prints_is_as_good_as_what_it_read(shell: Shell) -> None:
    first = shell("check", shell.file(MAIN))
    assert shell("check", shell.file(first.out, "again.yaml")) == first


def test_check_prints_a_policy_file(shell: Shell) -> None:
    file = shell.file(POLICY, "mine.yaml")
    said = shell("check", file)
    assert said.code == 0
    assert PolicyConfig.model_validate(yaml.safe_load(said.out)) == read_policy_file(file)


@pytest.mark.parametrize(
    "file", sorted({*CONFIGS.glob("**/*.yaml")} - {*CONFIGS.glob("mooncake/*")}), ids=lambda file: file.name
)
def test_our_own_files_pass(shell: Shell, file: Path) -> None:
    said = shell("check", file)
    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listen: {prot: 1}\n" + MAIN, ["main.yaml:1: listen.prot", "port"]),
        (MAIN + "active: nobody\n", ["active", "nobody"]),
        (
            "scorers: [{name: prefix_overlapp}]\n",
            ["policies.main", "'prefix_overlapp'", "prefix_overlap"],
        ),
        ("scorers: [{name: random, sed: 1}]\n", ["random", "sed"]),
        ("scorers: []\n", ["scorers"]),
        (MAIN.replace("random", "rondam"), ["policies.warm", "rondam"]),
        ("fleet: [", ["main.yaml"]),
        ("", ["main.yaml"]),
    ],
)
def test_a_wrong_file_is_2_and_says_where(shell: Shell, text: str, says: list[str]) -> None:
    said = shell("check", shell.file(text))
    assert (said.code, said.out) == (2, "")
    assert [word for word in says if word not in said.err] == []
    assert "Traceback" not in said.err


def test_what_is_said_is_not_taken_for_markup(shell: Shell) -> None:
    said = shell("check", shell.file("scorers: [{name: '[red]x[/red]'}]\n"))
    assert said.code == 2
    assert "[red]x[/red]" in said.err


# serve, fleet, engine: what they refuse before anything runs


def test_serve_without_engines_names_the_other_command(shell: Shell) -> None:
    text = "fleet: {embedded: {engines: 1}}\npolicies: {warm: {scorers: [{name: random}]}}\n"
    said = shell("serve", "--config", shell.file(text))
    assert said.code == 2
    assert "warmroute fleet" in said.err


def test_fleet_without_an_embedded_section_is_refused(shell: Shell) -> None:
    said = shell("fleet", "-c", shell.file(MAIN))
    assert said.code == 2
    assert "fleet.embedded" in said.err


@pytest.mark.parametrize("command", [["stack"], ["bench", "layers"], ["bench", "agents"]])
def test_what_needs_a_stack_section_says_so(shell: Shell, command: list[str]) -> None:
    said = shell(*command, "-c", shell.file(MAIN))
    assert said.code == 2
    assert "stack: is needed" in said.err


def test_a_stack_whose_router_has_no_port_does_not_start(shell: Shell) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        text = f"listen: {{port: {port}}}\nstack: {{}}\npolicies: {{warm: {{scorers: [{{name: random}}]}}}}\n"
        said = shell("stack", "-c", shell.file(text))
    assert (said.code, said.out) == (1, "")
    assert said.err == f"port {port} is in use: end what listens there, or change listen.port\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{", "--options"),
        ("[]", "--options"),
        ('{"block_tokns": 4}', "block_tokns"),
        ('{"block_tokens": 0}', "block_tokens"),
        ('{"faults": {"slow": 0}}', "faults.slow"),
    ],
)
def test_bad_engine_options_are_2_and_named(shell: Shell, options: str, says: str) -> None:
    said = shell("engine", "--options", options)
    assert (said.code, said.out) == (2, "")
    assert "--options" in said.err
    assert says in said.err


def test_an_engine_without_its_tokenizer_failed_while_running(shell: Shell) -> None:
    said = shell("engine", "--options", '{"tokenizer": "/no/such/folder"}')
    assert (said.code, said.out) == (1, "")
    assert "warmroute engine: " in said.err
    assert "Traceback" not in said.err
